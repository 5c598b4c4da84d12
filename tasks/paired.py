"""Two players on the same mazes: who won where, and what chance would make of it."""

from dataclasses import dataclass

from scipy.stats import binomtest

from configs.jobs import EvaluationSummary
from configs.mazes import MazeSet


@dataclass(frozen=True)
class Paired:
    """One player against another, maze by maze; mazes are told by their seeds."""

    wins: tuple[int, ...]
    """Solved by this player alone."""
    losses: tuple[int, ...]
    """Solved by the other alone."""
    p_value: float
    """Exact McNemar, two-sided: how likely a split at least as uneven is between equals."""


def pair(mine: EvaluationSummary, other: EvaluationSummary, mazes: MazeSet) -> Paired:
    """Compare two players.

    Raises:
        ValueError: one of them has not played exactly these mazes.
    """
    for played in (mine, other):
        if played.mazes_digest != mazes.digest or len(played.solved) != len(mazes.mazes):
            raise ValueError(
                f"{len(played.solved)} outcomes of other mazes than the {len(mazes.mazes)} of "
                f"{mazes.name} cannot be compared: run the deployment evaluate/evaluate again"
            )
    both = list(zip(mazes.mazes, mine.solved, other.solved, strict=True))
    wins = tuple(maze.seed for maze, won, lost in both if won and not lost)
    losses = tuple(maze.seed for maze, won, lost in both if lost and not won)
    return Paired(wins, losses, mcnemar(len(wins), len(losses)))


def mcnemar(num_wins: int, num_losses: int) -> float:
    """The p-value of the exact test, two-sided; 1 where the players never differ."""
    if num_wins + num_losses == 0:
        return 1.0
    return float(binomtest(num_wins, num_wins + num_losses).pvalue)


def wilson(num_solved: int, num_mazes: int) -> tuple[float, float]:
    """The 95 % interval of a share of solved mazes; everything where none was played."""
    if num_mazes == 0:
        return 0.0, 1.0
    interval = binomtest(num_solved, num_mazes).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)
