"""An inference server for the length of a `with`: started, awaited, and gone on the way out."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from containers.server.launch import ServerPlan, command, environment
from containers.server.leash import leashed

_LAST_WORDS_BYTES = 20_000
_LONGEST_WORDS = 300


@dataclass(frozen=True)
class StartingServer:
    """A server that was started and may not answer yet."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def await_health(self, timeout_s: float = 600) -> None:
        """Return once the server answers.

        Raises:
            RuntimeError: it ended or was not healthy in time; its last words, and where its log is.
        """
        await_health(self.url, self.process, self.log, timeout_s)


@contextmanager
def starting_server(plan: ServerPlan, log: Path) -> Generator[StartingServer]:
    """Start a server and yield it at once, for those who have something to do meanwhile."""
    with leashed(command(plan), environment(plan), log) as process:
        yield StartingServer(f"http://127.0.0.1:{plan.listen}", process, log)


@contextmanager
def inference_server(plan: ServerPlan, log: Path) -> Generator[str]:
    """Run a server and yield its address once it is healthy.

    Raises:
        RuntimeError: the server ended or was not healthy in time; its last words, and where its
            log is.
    """
    with starting_server(plan, log) as server:
        server.await_health()
        yield server.url


def free_port() -> int:
    """A port that is free now, chosen by the kernel."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_health(url: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    """Return once the server answers.

    Raises:
        RuntimeError: it ended or was not healthy in time; its last words, and where its log is.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = _last_words(log)
            raise RuntimeError(f"the inference server ended while starting: {said}; see {log}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    late, said = f"was not healthy within {timeout_s:.0f} s", _last_words(log)
    raise RuntimeError(f"the inference server {late}: {said}; see {log}")


def _last_words(log: Path) -> str:
    """The last error in a server's log, else its last line."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1][-_LONGEST_WORDS:]
