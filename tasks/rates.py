"""How sure a count of solved mazes is: Wilson's interval, and McNemar's exact test for pairs."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from tasks.paired import mcnemar, wilson


class Rate(BaseModel):
    """A success rate with its 95 % Wilson interval, all shares of 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_solved: int
    num_mazes: int
    share: float
    low: float
    high: float


class PairedComparison(BaseModel):
    """A candidate against an opponent on the same mazes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opponent: str
    wins: int
    """Mazes that only the candidate solves."""
    losses: int
    """Mazes that only the opponent solves."""
    p_value: float
    """Of McNemar's exact test, two-sided."""


def rate(num_solved: int, num_mazes: int) -> Rate:
    """The success rate on `num_mazes` >= 1 mazes."""
    low, high = wilson(num_solved, num_mazes)
    return Rate(
        num_solved=num_solved,
        num_mazes=num_mazes,
        share=num_solved / num_mazes,
        low=low,
        high=high,
    )


def compare(opponent: str, theirs: Sequence[bool], ours: Sequence[bool]) -> PairedComparison:
    """Outcomes on the same mazes, in the same order."""
    pairs = list(zip(ours, theirs, strict=True))
    wins, losses = pairs.count((True, False)), pairs.count((False, True))
    p_value = mcnemar(wins, losses)
    return PairedComparison(opponent=opponent, wins=wins, losses=losses, p_value=p_value)
