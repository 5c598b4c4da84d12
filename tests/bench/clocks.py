"""Timing in the benchmark: the best of a few rounds, since noise only ever adds."""

import time
from collections.abc import Callable


def best_s(action: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the quickest round."""
    return min(_once(action) for _ in range(rounds))


def _once(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
