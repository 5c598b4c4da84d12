"""Whether training moves, judged by its own history and not by a constant."""

import time
from collections import deque
from collections.abc import Callable, Iterable

from tasks.run_dir import Run

_TIMES_THE_SLOWEST = 5.0
"""A step may take this many times as long as the slowest of the last steps."""
LAST_STEPS = 10
_LEAST_S = 120.0
"""However quick the steps are: saving, garbage, a busy machine."""


class Stalled(RuntimeError):
    """Training has not moved for longer than its history explains."""


class Watchdog:
    """Watches one attempt. A step trained or a checkpoint committed is progress."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._steps = run.follow_steps()
        self._took_s: deque[float] = deque(maxlen=LAST_STEPS)
        self._seen = self._sign()
        self._moved_at = clock()
        self._limit_s: float = run.config.train.first_step_timeout_s
        self.has_moved = False

    def check(self) -> None:
        """Look once.

        Raises:
            Stalled: nothing has moved for too long; says for how long and what was allowed.
        """
        sign = self._sign()
        if sign != self._seen:
            self._seen, self._moved_at = sign, self._clock()
            self._limit_s = self._allowed_s()
            self.has_moved = True
        still_s = self._clock() - self._moved_at
        if still_s > self._limit_s:
            raise Stalled(f"no progress for {still_s:.0f} s, {self._limit_s:.0f} s are allowed")

    def _sign(self) -> tuple[int, int]:
        metrics = self._run.metrics
        size = metrics.stat().st_size if metrics.is_file() else 0
        return size, self._run.committed_step()

    def _allowed_s(self) -> float:
        self._took_s.extend(line.values.get("timing/step", 0.0) for line in self._steps.read())
        return allowed_s(self._took_s)


def allowed_s(took_s: Iterable[float]) -> float:
    """How long the next step may take after the last ones, which took so long."""
    return max(_LEAST_S, _TIMES_THE_SLOWEST * max(took_s, default=0.0))
