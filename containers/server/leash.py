"""Run a command whose whole process group ends with whoever started it, however that one ends.

vLLM's API server has engine processes that outlive it at full load when it is killed. So the
leash leads: it asks the kernel for a signal when its own parent dies, starts the command in a
new process group, and kills that group on any way out. It also keeps the log small.

    python -m containers.server.leash COMMAND [ARGUMENT ...]
"""

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_MAX_LOG_BYTES = 20_000_000
_LOG_LOOK_S = 10.0


@contextmanager
def leashed(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Generator[subprocess.Popen[bytes]]:
    """Start `command` on a leash, its output appended to `log`; its group is gone on return.

    A log of more than 20 MB moves to `log` with `.1` behind its name, and a new one begins.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "containers.server.leash", *command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def lead(command: Sequence[str]) -> int:
    """Run `command` in its own process group and take the group down before returning."""
    parent = os.getppid()
    die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    child = subprocess.Popen(
        command, start_new_session=True, preexec_fn=lambda: die_with_parent(signal.SIGKILL)
    )
    try:
        if os.getppid() != parent:  # it died before the kernel knew that we care
            return 1
        return _wait(child)
    finally:
        with suppress(ProcessLookupError):  # the group may have ended by itself
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait(child: subprocess.Popen[bytes]) -> int:
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=_LOG_LOOK_S)
        bound_log(sys.stdout.fileno(), _MAX_LOG_BYTES)


def bound_log(output: int, max_bytes: int) -> None:
    """Begin the file behind an open descriptor anew where it is too large; keep the one before.

    Those who write to it go on at its new end, since it was opened to append.
    """
    found = os.fstat(output)
    if stat.S_ISREG(found.st_mode) and found.st_size > max_bytes:
        path = os.readlink(f"/proc/self/fd/{output}")
        with suppress(OSError):  # a full disk: what can be freed is freed
            shutil.copyfile(path, f"{path}.1")
        os.ftruncate(output, 0)


def die_with_parent(signal_number: int) -> None:
    """Ask Linux to send this process a signal when its parent thread ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number)


def _leave(signal_number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":
    sys.exit(lead(sys.argv[1:]))
