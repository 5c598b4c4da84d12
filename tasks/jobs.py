"""Following a job that was submitted under a fixed id, or adopted, until it ends."""

import time
from collections.abc import Callable
from pathlib import Path

from tasks.backends.protocols import Image, Jobs, JobStatus

_POLL_S = 1.0
_LOST_AFTER_S = 60
"""A cluster that cannot be asked about a job for this long has lost it."""


def program(image: Image, module: str, job_file: Path) -> list[str]:
    """The command line of a program inside the image."""
    return [image.python, "-m", module, str(job_file)]


def job_environment(image: Image) -> dict[str, str]:
    return {"PYTHONPATH": image.app, "HF_HUB_OFFLINE": "1"}


def follow(jobs: Jobs, submission_id: str, on_poll: Callable[[], None]) -> JobStatus:
    """Wait for the job's end, calling `on_poll` about every second.

    The job goes on when the caller dies or `on_poll` raises: whoever comes next adopts it.
    """
    unknown_since: float | None = None
    while True:
        status = jobs.status(submission_id)
        on_poll()
        if status in ("succeeded", "failed", "stopped"):
            return status
        if status != "unknown":
            unknown_since = None
        elif unknown_since is None:
            unknown_since = time.monotonic()
        elif time.monotonic() - unknown_since > _LOST_AFTER_S:
            return "unknown"
        time.sleep(_POLL_S)
