"""Classes of failure: what ended an attempt, what is done about it, and how often.

An attempt is judged by how its job ended and by the last words of its log. The first class that
fits decides; the order goes from causes that name themselves to those that only show themselves
in what broke because of them.
"""

import re
from dataclasses import dataclass
from typing import Literal

from tasks.backends.protocols import JobStatus
from tasks.words import telling_line

Action = Literal["retry", "new cluster", "smaller batches", "stop"]
"""`retry`: on the same cluster if it is whole. `smaller batches`: with half the episodes in one
pass, which changes memory and time but not the result."""

_LAST_WORDS = 12_000
"""Characters at the end of a log that speak of its end."""


@dataclass(frozen=True)
class Failure:
    """A class of failure and its policy."""

    cause: str
    """A few words; also the key under which attempts are counted."""
    action: Action
    budget: int
    """Attempts in a row that may end so without progress; then training stops."""
    advice: str
    """The operator's next move, should training stop because of this."""
    wait_s: int = 0
    """Before the next attempt, to let what is away come back."""


CANCELLED = Failure("cancelled by a person", "stop", 0, "start the same flow again to go on")
STALLED = Failure("no progress", "new cluster", 2, "read diagnosis.txt beside the job's log")
LOST_CLUSTER = Failure("lost cluster", "new cluster", 3, "look at the logs of the Ray nodes")
SHORT = Failure("ended short of the last step", "retry", 3, "read the job's log")
UNKNOWN = Failure("unknown failure", "retry", 3, "read the job's log and mend the cause")
LOST_SERVER = Failure("lost inference server", "retry", 3, "read inference-server.log")
BAD_CODE = Failure("bad code", "stop", 0, "mend the code; the same flow then goes on")

_BY_LAST_WORDS: tuple[tuple[str, Failure], ...] = (
    (
        r"interrupted by SIGTERM",
        Failure("interrupted", "retry", 3, "find out who drains its machines"),
    ),
    (
        r"No space left on device|Disk quota exceeded|ENOSPC",
        Failure("storage full", "stop", 0, "make room on the disk of the run's folder"),
    ),
    (
        r"Input/output error|Stale file handle|Transport endpoint|Read-only file system",
        Failure("storage away", "retry", 3, "look at the storage of the run's folder", wait_s=20),
    ),
    (
        # Not the bare word OOM: Ray lists it among the possible causes of every death.
        r"OutOfMemory|MemoryError|[Oo]ut of memory|low on memory|std::bad_alloc",
        Failure("out of memory", "smaller batches", 3, "lower train.micro_batch_episodes"),
    ),
    (
        r"not finite",
        Failure("loss not finite", "retry", 2, "lower train.learning_rate"),
    ),
    (
        r"NodeDied|node (has )?died|node was terminated|node .*marked dead|nodes? .*not alive",
        Failure("lost node", "new cluster", 3, "look at the machine behind the node"),
    ),
    (
        r"inference server|ClientConnectorError|ServerDisconnected|Cannot connect to host",
        LOST_SERVER,
    ),
    (
        r"ActorDied|RayActorError|WorkerCrashed|ActorUnavailable|LocalRayletDied",
        Failure("lost worker", "retry", 3, "read the job's log"),
    ),
    (
        r"failed with exit code -?(9|137)\b",
        Failure("killed", "retry", 3, "find out who killed it, the kernel for memory perhaps"),
    ),
    (
        r"refuses the configuration|ValidationError|JSONDecodeError|InvalidHeader",
        Failure("bad data", "stop", 0, "mend the input that the message names"),
    ),
)
CAUSES = tuple(
    failure.cause
    for failure in (
        *(CANCELLED, STALLED, LOST_CLUSTER, SHORT, UNKNOWN, BAD_CODE),
        *(failure for _, failure in _BY_LAST_WORDS),
    )
)
_CODE = re.compile(r"\b(Import|ModuleNotFound|Syntax|Attribute|Name|Type|NotImplemented)Error\b")


def account(failure: Failure, log: str, server_log: str) -> str:
    """One line on an attempt's end: its class, and what it said itself."""
    line = f"{failure.cause}: {telling_line(log)}"
    said = telling_line(server_log, silence="")
    if failure == LOST_SERVER and said and said not in line:
        line += f" (the server: {said})"
    return line


def classify(status: JobStatus, log: str, *, has_moved: bool) -> Failure:
    """The class of an attempt that did not train to the end.

    `has_moved` says that it trained a step: code that ran once is not taken for broken.
    """
    if status == "stopped":
        return CANCELLED
    if status == "succeeded":
        return SHORT
    if status != "failed":
        return LOST_CLUSTER
    last_words = log[-_LAST_WORDS:]
    for pattern, failure in _BY_LAST_WORDS:
        if re.search(pattern, last_words):
            return failure
    if not has_moved and _CODE.search(telling_line(log)):
        return BAD_CODE
    return UNKNOWN
