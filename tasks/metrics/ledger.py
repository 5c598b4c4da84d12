"""What failures cost: the attempts of a run, laid over the steps that they trained.

A step counts for the last attempt that trained it. All times are in milliseconds since 1970, by
the clocks of trainer and control plane, which may differ a little: no span is below 0.
"""

from dataclasses import dataclass, field
from datetime import datetime

from configs.jobs import MetricsLine
from tasks.attempts import Attempt


@dataclass
class Trained:
    """The steps of one attempt."""

    first_step: int
    begun_ms: float
    """Begin of its first step."""
    walls_ms: dict[int, int] = field(default_factory=dict)
    """Step to the moment of its end."""

    @classmethod
    def begin(cls, line: MetricsLine) -> "Trained":
        took_ms = 1000 * line.values.get("timing/step", 0.0)
        return cls(line.step, line.wall_time_ms - took_ms)

    @property
    def first_ms(self) -> int:
        return self.walls_ms[self.first_step]


@dataclass(frozen=True)
class Ledger:
    """Sums over all attempts so far; none of them ever falls."""

    held_s: float
    """Attempts, from start to end."""
    held_lost_s: float
    """The part of it that no step that counts came of."""
    lost_s: float
    """Without such a step, from the last to the next, the time between attempts included."""
    recoveries_s: tuple[float, ...]
    """From each failure to the next trained step."""


def reckon(attempts: list[Attempt], trained: dict[int, Trained], now_ms: float) -> Ledger:
    """The ledger of attempts in order of their numbers, and of what each has trained."""
    ends = [_ms(attempt.ended) if attempt.ended else now_ms for attempt in attempts]
    spans = zip(attempts, ends, strict=True)
    resumed = [a for a in attempts[1:] if a.number in trained]
    return Ledger(
        held_s=sum(_seconds(_ms(attempt.started), end) for attempt, end in spans),
        held_lost_s=sum(_held_in_vain(attempt, attempts, trained) for attempt in attempts),
        lost_s=sum(_gap(attempt, attempts, trained) for attempt in resumed),
        recoveries_s=tuple(_recovery(attempt, attempts, trained) for attempt in resumed),
    )


def _held_in_vain(attempt: Attempt, attempts: list[Attempt], trained: dict[int, Trained]) -> float:
    """Starting again, and what came after the last step that counts, once the attempt is over."""
    steps = trained.get(attempt.number)
    started = _ms(attempt.started)
    if steps is None:
        return _seconds(started, _ms(attempt.ended)) if attempt.ended else 0.0
    startup = _seconds(started, steps.begun_ms) if attempt.number > 1 else 0.0
    later = [trained[n].first_step for n in trained if n > attempt.number]
    last = min([max(steps.walls_ms), *(first - 1 for first in later)])
    if last < steps.first_step:  # all of it was trained anew
        begin = steps.begun_ms if attempt.number > 1 else started
        return startup + _seconds(begin, _end(attempt, steps))
    has_failed = bool(later or attempt.cause)
    return startup + (_seconds(steps.walls_ms[last], _end(attempt, steps)) if has_failed else 0.0)


def _end(attempt: Attempt, steps: Trained) -> float:
    return _ms(attempt.ended) if attempt.ended else steps.walls_ms[max(steps.walls_ms)]


def _gap(attempt: Attempt, attempts: list[Attempt], trained: dict[int, Trained]) -> float:
    steps = trained[attempt.number]
    before = [trained[n] for n in sorted(trained) if n < attempt.number]
    kept = [t.walls_ms[steps.first_step - 1] for t in before if steps.first_step - 1 in t.walls_ms]
    return _seconds(kept[-1] if kept else _ms(attempts[0].started), steps.begun_ms)


def _recovery(attempt: Attempt, attempts: list[Attempt], trained: dict[int, Trained]) -> float:
    """From the end of the last attempt that had trained anything, or of the first."""
    before = [a for a in attempts if a.number < attempt.number]
    moved = [a for a in before if a.number in trained] or before[:1]
    failed = moved[-1].ended or moved[-1].started
    return _seconds(_ms(failed), trained[attempt.number].first_ms)


def _ms(moment: datetime) -> float:
    return moment.timestamp() * 1000


def _seconds(begin_ms: float, end_ms: float) -> float:
    return max(0.0, end_ms - begin_ms) / 1000
