"""Finds what a process left behind by the environment it passed on, and ends it.

Never by name, so nobody else's process is ever touched. Also the first thing every supervised
process runs: a server killed by SIGKILL leaves children that keep its port, so those end before
it starts again; the program then becomes the command and keeps its pid.

    python -I tasks/backends/leftovers.py [NAME=VALUE ...] -- COMMAND [ARGUMENT ...]
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import psutil

MARK = "ARIADNE_SUPERVISOR"
"""Holds the home. The supervisor passes it on to all that it starts, and they to theirs."""

NAME = "SUPERVISOR_PROCESS_NAME"
"""Set by supervisord for each process it starts, and not for itself."""

_POLL_S = 0.05


def alive(process: psutil.Process) -> bool:
    """Zombies are dead. psutil counts them as running, and a container may never reap them."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def marked(variables: Mapping[str, str]) -> set[psutil.Process]:
    """Living processes that were started with all these variables, and all below them.

    Below them too: a program that sets its title (Ray's workers) overwrites its environment.
    """
    found = {process for process in psutil.process_iter() if _carries(process, variables)}
    for process in tuple(found):
        with suppress(psutil.Error):
            found |= set(process.children(recursive=True))
    return found


def supervisors(home: str) -> set[psutil.Process]:
    """The home's supervisord; more than one only if its socket was deleted under it."""
    carrying = (process for process in psutil.process_iter() if _carries(process, {MARK: home}))
    return {process for process in carrying if not _carries(process, {}, has=NAME)}


def group(pgid: int) -> set[psutil.Process]:
    """The processes of a process group."""
    return {process for process in psutil.process_iter() if _group(process) == pgid}


def lineage() -> set[psutil.Process]:
    """The caller and its ancestors: whoever cleans up must not end itself."""
    caller = psutil.Process()
    return {caller, *caller.parents()}


def own_tree(home: str) -> set[psutil.Process]:
    """`lineage`, and all below the topmost supervised ancestor: the caller's siblings too."""
    tree = lineage()
    supervised = [process for process in tree if _carries(process, {MARK: home}, has=NAME)]
    for process in supervised:
        tree |= set(process.children(recursive=True))
    return tree


def end(processes: Iterable[psutil.Process], grace_s: float, kill_s: float = 10) -> None:
    """SIGTERM, then SIGKILL after `grace_s`. Returns when all are gone.

    Raises:
        RuntimeError: something outlived SIGKILL, stuck in the kernel.
    """
    left = _signal(processes, psutil.Process.terminate, grace_s)
    if left := _signal(left, psutil.Process.kill, kill_s):
        pids = ", ".join(str(process.pid) for process in left)
        raise RuntimeError(
            f"process {pids} does not die by SIGKILL; look at it with `ps -l {pids}`"
        )


def become(assignments: Iterable[str], command: list[str]) -> None:
    """End what an earlier process of this name left in its group, then exec the command."""
    variables = {variable: os.environ[variable] for variable in (MARK, NAME)}
    orphans = [process for process in marked(variables) if _orphaned(process)]
    end(orphans, grace_s=0)
    environment = os.environ | dict(assignment.split("=", 1) for assignment in assignments)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.exit(f"error: cannot start {command[0]}: {error.strerror}")


def _signal(
    processes: Iterable[psutil.Process], send: Callable[[psutil.Process], None], wait_s: float
) -> list[psutil.Process]:
    left = [process for process in processes if alive(process)]
    for process in left:
        with suppress(psutil.Error):
            send(process)
    deadline = time.monotonic() + wait_s
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [process for process in left if alive(process)]
    return left


def _carries(process: psutil.Process, variables: Mapping[str, str], has: str = MARK) -> bool:
    with suppress(psutil.Error, OSError):
        found = process.environ()
        return alive(process) and has in found and variables.items() <= found.items()
    return False


def _group(process: psutil.Process) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


def _orphaned(process: psutil.Process) -> bool:
    """Its group has lost its leader. A flow run leads a group of its own and goes on."""
    pgid = _group(process)
    try:
        return pgid is not None and not alive(psutil.Process(pgid))
    except psutil.NoSuchProcess:
        return True


if __name__ == "__main__":
    separator = sys.argv.index("--")
    become(sys.argv[1:separator], sys.argv[separator + 1 :])
