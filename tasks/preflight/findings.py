"""A finding: one thing that was looked at, whether it will do, and what to do where it will not."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class Finding(BaseModel):
    """The outcome of one check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    ok: bool
    detail: str
    """What was found, with its numbers."""
    fix: str = ""
    """The next move where it is not ok."""


def refuse(findings: Iterable[Finding]) -> None:
    """Do nothing where all is well.

    Raises:
        ValueError: one line with everything that is wrong, and how to mend it.
    """
    wrong = [f"{each.name}: {each.detail}: {each.fix}" for each in findings if not each.ok]
    if wrong:
        raise ValueError(f"preflight refuses the run: {'; '.join(wrong)}")
