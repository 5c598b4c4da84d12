"""What a part of the benchmark says: one measure a line, as JSON between environments."""

import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Measure(BaseModel):
    """One number, and what it should be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: str
    what: str
    value: float = Field(allow_inf_nan=False)
    unit: str
    target: float | None = None
    better: Literal["higher", "lower"] = "lower"

    @property
    def is_met(self) -> bool | None:
        """None where nothing is asked for."""
        if self.target is None:
            return None
        if self.better == "higher":
            return self.value >= self.target
        return self.value <= self.target

    def say(self) -> None:
        """Print for the driver, which reads what starts like this."""
        sys.stdout.write(MARK + self.model_dump_json() + "\n")
        sys.stdout.flush()


MARK = "MEASURE "


def heard(output: str) -> list[Measure]:
    """The measures in a program's output."""
    lines = [line for line in output.split("\n") if line.startswith(MARK)]
    return [Measure.model_validate_json(line.removeprefix(MARK)) for line in lines]
