"""What the processes of a supervised program do right now: their stacks, through py-spy."""

import subprocess
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tasks.backends.leftovers import marked

_TIMEOUT_S = 20


def dump(variables: Mapping[str, str]) -> str:
    """The stacks of all processes started with these variables, Python's where they are Python."""
    found = sorted(marked(variables), key=lambda process: process.pid)
    return "\n\n".join(_describe(process) for process in found) or "no process is left"


def _describe(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        words = " ".join(process.cmdline())[:300]
        return f"== {process.pid} {process.status()} {words}\n{_stack(process.pid)}"
    return f"== {process.pid} is gone"


def _stack(pid: int) -> str:
    """Without stopping the process: a stopped one would never answer."""
    program = Path(sysconfig.get_path("scripts")) / "py-spy"
    command = [str(program), "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no stack within {_TIMEOUT_S} s"
    return (done.stdout or done.stderr).strip()
