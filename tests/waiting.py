"""Wait for a condition, never for a time."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], timeout_s: float = 30) -> None:
    """Return once `holds()` is true; fail when it is not after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{holds} did not come true in {timeout_s} s"
        time.sleep(0.05)
