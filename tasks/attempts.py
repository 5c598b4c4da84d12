"""Attempts: each try at training has the next number, taken once by whoever creates its file."""

from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tasks.backends.protocols import ObjectStore
from tasks.records import write_whole


class Attempt(BaseModel):
    """attempts/N.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    submission_id: str
    flow_run: str
    started: datetime
    start_step: int
    """Of the checkpoint it was to go on from."""
    ended: datetime | None = None
    end_step: int | None = None
    cause: str | None = None
    """Class of its failure; None where it trained to the end."""
    reason: str | None = None

    @property
    def progressed(self) -> bool:
        return self.end_step is not None and self.end_step > self.start_step


def all_attempts(folder: Path) -> list[Attempt]:
    """In order."""
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [Attempt.model_validate_json(path.read_text()) for path in files]


def take_next(place: ObjectStore, run_id: str, flow_run: str, start_step: int) -> Attempt:
    """Create the next attempt; of two callers one gets the number and the other the one after.

    `place` has the attempts' files at its top: a folder of a shared file system, or an S3 prefix.
    """
    while True:
        taken = (key.removesuffix(".json") for key in place.keys("") if key.endswith(".json"))
        number = 1 + max(map(int, taken), default=0)
        attempt = Attempt(
            number=number,
            submission_id=f"{run_id}-attempt-{number}",
            flow_run=flow_run,
            started=datetime.now(UTC),
            start_step=start_step,
        )
        # Where somebody else was first, the one after is tried.
        if place.create(f"{number}.json", f"{attempt.model_dump_json(indent=1)}\n".encode()):
            return attempt


def end(
    folder: Path, attempt: Attempt, end_step: int, reason: str, cause: str | None = None
) -> Attempt:
    """Write down how an attempt ended."""
    outcome = {"end_step": end_step, "reason": reason, "cause": cause}
    ended = attempt.model_copy(update={"ended": datetime.now(UTC), **outcome})
    write_whole(folder / f"{attempt.number}.json", ended.model_dump_json(indent=1) + "\n")
    return ended


def fruitless(attempts: list[Attempt]) -> list[Attempt]:
    """The ended attempts in a row, up to the last, that brought no new checkpoint."""
    row: list[Attempt] = []
    for attempt in reversed([a for a in attempts if a.ended]):
        if attempt.progressed:
            break
        row.append(attempt)
    return row
