"""Following the logs of a home: its services and nodes, and the newest job of the newest run."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tasks.attempt_log import EARLIER, LOG, parse
from tasks.home import Home
from tasks.words import clean, tail

_POLL_S = 0.5
_LABEL_WIDTH = 17

Say = Callable[[str], None]


def log_files(home: Home) -> list[Path]:
    """The logs of the services and nodes, and of the newest attempt or job of the newest run.

    Raises:
        RuntimeError: there are none yet.
    """
    files = _find(home)
    if not files:
        raise RuntimeError("there are no logs yet: `make run` or `make up` writes the first")
    return files


def _find(home: Home) -> list[Path]:
    """Those there are at this moment; one that is just being rotated is not."""
    jobs = [file for name in (LOG, EARLIER) for file in home.runs.glob(f"*/scratch/*/{name}")]
    newest = sorted(jobs, key=lambda file: file.stat().st_mtime)[-1:]
    return [*sorted(home.logs.glob("*.log")), *(file.with_name(LOG) for file in newest)]


def show_logs(home: Home, say: Say, num_lines: int) -> None:
    """Say the last lines of each log."""
    for file in log_files(home):
        _say_last(file, say, num_lines)


def follow_logs(home: Home, say: Say, num_lines: int) -> None:
    """Say the last lines of each log and what is added, new logs included, until interrupted."""
    with suppress(KeyboardInterrupt):
        followed = {file: _Growing(file) for file in log_files(home)}
        for file in followed:
            _say_last(file, say, num_lines)
        while True:
            for file in _find(home):
                for line in followed.setdefault(file, _Growing(file, begin=0)).read():
                    say(_described(file, line))
            time.sleep(_POLL_S)


class _Growing:
    """New whole lines of a file that grows, and may be replaced by a new one."""

    def __init__(self, file: Path, begin: int | None = None) -> None:
        self._file = file
        size, self._inode = self._look()
        self._at = size if begin is None else begin

    def read(self) -> Iterator[str]:
        size, inode = self._look()
        if inode != self._inode or size < self._at:
            self._at, self._inode = 0, inode
        if size == self._at:
            return
        with suppress(FileNotFoundError), self._file.open("rb") as opened:
            opened.seek(self._at)
            for line in islice(opened, 10_000):  # other logs have their turn, too
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield line.decode(errors="replace")

    def _look(self) -> tuple[int, int]:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_size, found.st_ino


def _say_last(file: Path, say: Say, num_lines: int) -> None:
    lines = [line for line in tail(file, num_bytes=1000 * num_lines).splitlines() if line.strip()]
    for line in lines[-num_lines:]:
        say(_described(file, line))


def _described(file: Path, line: str) -> str:
    """Who said it first; lines of jobs also have the time when they came."""
    if file.name == LOG and (known := parse(line)):
        attempt = file.parent.name if file.parent.name.startswith("attempt-") else ""
        who = f"{attempt} {known.source}".strip()
        text = f"{known.time.astimezone():%H:%M:%S} {known.text}"
    else:
        who, text = file.stem, clean(line)
    return f"{who:<{_LABEL_WIDTH}} | {text}"
