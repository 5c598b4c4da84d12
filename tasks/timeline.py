"""What happened to a run, in order: stages done, attempts, what ended them, and how it went on."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tasks.attempts import Attempt
from tasks.progress import Progress, Span, duration

_MOST_EVENTS = 100

Kind = Literal["stage", "attempt", "failure", "recovery"]


@dataclass(frozen=True)
class Event:
    """One line of the timeline."""

    time: datetime
    kind: Kind
    what: str


def timeline(progress: Progress) -> list[Event]:
    """The last hundred events, oldest first."""
    events = [*_of_stages(progress), *_of_attempts(progress)]
    return sorted(events, key=lambda event: event.time)[-_MOST_EVENTS:]


def _of_stages(progress: Progress) -> Iterator[Event]:
    for stage in progress.stages:
        record = progress.run.records / f"{stage.name}.json"
        if stage.state == "done" and record.is_file():
            when = datetime.fromtimestamp(record.stat().st_mtime, UTC)
            yield Event(when, "stage", f"{stage.name}: {stage.detail}")


def _of_attempts(progress: Progress) -> Iterator[Event]:
    before: Attempt | None = None
    for attempt in progress.attempts:
        span = progress.spans.get(attempt.number)
        yield Event(attempt.started, "attempt", f"attempt {attempt.number} {_start(attempt)}")
        if before and before.ended and span:
            when = datetime.fromtimestamp(span.first.wall_time_ms / 1000, UTC)
            # Two machines' clocks differ, and one's may be set.
            after = duration(max(0.0, (when - before.ended).total_seconds()))
            what = f"attempt {attempt.number} has trained step {span.first.step}"
            yield Event(when, "recovery", f"{what}, {after} after attempt {before.number} ended")
        if attempt.ended:
            kind: Kind = "failure" if attempt.cause else "attempt"
            what = f"attempt {attempt.number} ended: {attempt.reason}"
            yield Event(attempt.ended, kind, what + _lost(attempt, span))
        before = attempt


def _start(attempt: Attempt) -> str:
    return f"goes on from step {attempt.start_step}" if attempt.start_step else "starts at the base"


def _lost(attempt: Attempt, span: Span | None) -> str:
    """Steps that were trained and have no checkpoint."""
    if not attempt.cause or attempt.end_step is None:
        return ""
    trained = span.last.step if span else attempt.end_step
    lost = max(0, trained - attempt.end_step)
    return f"; {lost} step{'' if lost == 1 else 's'} lost, step {attempt.end_step} is kept"
