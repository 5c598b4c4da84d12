"""The log of one attempt, log.jsonl in its scratch: trainer and inference server in one place.

The trainer writes to Ray's log and the server to a file of its own; both come here line by line
while they run, with a source, a level and a time. Colours and keys do not. What is there already
is not written again by a flow that takes the attempt over.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.backends.protocols import Jobs
from tasks.words import clean

LOG = "log.jsonl"
EARLIER = "log.1.jsonl"
SERVER_LOG = "inference-server.log"
RAW_LOG = "job.log"
_MAX_BYTES = 20_000_000
_LEAST_PAUSE_S = 5.0
_PAUSES = 100
"""Reading may take one part in so many of the time: Ray hands out a log only as a whole."""

Source = Literal["trainer", "evaluation", "server"]
Level = Literal["info", "warning", "error"]
_LEVELS: tuple[tuple[Level, re.Pattern[str]], ...] = (
    ("error", re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|\b\w*(Error|Exception)\b|^Traceback\b")),
    ("warning", re.compile(r"\b(WARN|WARNING)\b|\b\w*Warning\b")),
)


class LogLine(BaseModel):
    """One line of log.jsonl."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: datetime
    """When it came here: some seconds after it was written at most, while a flow looks."""
    source: Source
    number: int
    """Of the line in its source, from 1."""
    level: Level
    text: str


class AttemptLog:
    """Keeps log.jsonl while a job is followed. At most 20 MB, and 20 MB before them."""

    def __init__(
        self,
        jobs: Jobs,
        submission_id: str,
        scratch: Path,
        source: Source = "trainer",
        clock: Callable[[], float] = time.monotonic,
        *,
        is_new: bool = False,
    ) -> None:
        """`is_new`: nothing of this job can be here yet, whatever another has left."""
        self._ask = lambda: jobs.logs(submission_id)
        self._scratch, self._source, self._clock = scratch, source, clock
        self._written: Counter[str] = Counter()
        """Lines of each source that are here."""
        for line in () if is_new else read_log(scratch):
            self._written[line.source] = line.number
        server = scratch / SERVER_LOG
        begin = server.stat().st_size if is_new and server.is_file() else 0
        self._server = _ServerLog(server, begin, self._written["server"])
        self._look_at = 0.0

    def poll(self) -> None:
        """Look for new lines, not too often."""
        began = self._clock()
        if began < self._look_at:
            return
        self._take(self._ask(), is_whole=False)
        self._look_at = self._clock() + max(_LEAST_PAUSE_S, _PAUSES * (self._clock() - began))

    def end(self) -> str:
        """Take what is left and keep the end of the raw log; returns the whole of it."""
        text = self._ask()
        self._take(text, is_whole=True)
        with suppress(OSError):
            (self._scratch / RAW_LOG).write_text(text[-_MAX_BYTES:])
        return text

    def _take(self, text: str, *, is_whole: bool) -> None:
        """Lines that may still grow wait: the last one, and what says how the job ended."""
        lines = [line for line in text.splitlines() if line.strip()]
        end = len(lines) if is_whole else len(lines) - 1
        self._write(self._source, lines[self._written[self._source] : end])
        self._write("server", self._server.read())

    def _write(self, source: Source, texts: Iterable[str]) -> None:
        now, new = datetime.now(UTC), []
        for text in texts:
            self._written[source] += 1
            number = self._written[source]
            said = clean(text)
            line = LogLine(time=now, source=source, number=number, level=level_of(said), text=said)
            new.append(line.model_dump_json() + "\n")
        if not new:
            return
        file = self._scratch / LOG
        with suppress(OSError):  # a full disk is for the training to end on, not for its log
            if file.is_file() and file.stat().st_size > _MAX_BYTES:
                file.replace(self._scratch / EARLIER)
            with file.open("a") as opened:
                opened.writelines(new)


class _ServerLog:
    """New whole lines of a file that grows, and begins anew when it was too large."""

    def __init__(self, file: Path, begin: int, num_known: int) -> None:
        self._file, self._at, self._num_known = file, begin, num_known

    def read(self) -> Iterator[str]:
        size = self._file.stat().st_size if self._file.is_file() else 0
        if size < self._at:
            self._at = 0
        if size == self._at:
            return
        with self._file.open("rb") as opened:
            opened.seek(self._at)
            for line in opened:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                text = line.decode(errors="replace")
                if not text.strip():
                    continue
                if self._num_known:
                    self._num_known -= 1
                else:
                    yield text


def level_of(text: str) -> Level:
    """As the line itself says."""
    return next((level for level, pattern in _LEVELS if pattern.search(text)), "info")


def read_log(scratch: Path) -> Iterator[LogLine]:
    """The lines of an attempt, oldest first; a torn one tells nothing."""
    for name in (EARLIER, LOG):
        file = scratch / name
        if file.is_file():
            with file.open() as opened:
                yield from (line for text in opened if (line := parse(text)))


def parse(text: str) -> LogLine | None:
    """A line of log.jsonl; None for one that a crash has torn."""
    try:
        return LogLine.model_validate_json(text)
    except ValueError:
        return None
