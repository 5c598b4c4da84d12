"""Turns: of the flows that want the same run, one works on it at a time, and the newest one writes.

The lock of the run's folder makes a second flow wait. The turn file says who works now: a flow
that was thought dead and comes back to life, on this machine or another, finds somebody else in
it and stops before it writes anything that counts.
"""

import os
import signal
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from uuid import uuid4

import psutil
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tasks.holder import Turn, read_turn, turn_file
from tasks.home import take_lock
from tasks.records import write_whole
from tasks.run_dir import Run

_POLL_S = 1.0
_TOKEN = uuid4().hex
_OWNED = "PREFECT__FLOW_RUN_ID"
"""Prefect tells every process of a flow run which run it is."""


class Superseded(RuntimeError):
    """Another flow works on this run by now."""


@contextmanager
def turn(run: Run) -> Generator[None]:
    """Work on the run alone; waits for another flow that does, and ends our own past self."""
    with (run.folder / ".turn.lock").open("a") as file:
        if not take_lock(file):
            end_past_self(read_turn(run))
            get_run_logger().info("turn: waiting for another flow on run %s", run.run_id)
            while not take_lock(file):
                time.sleep(_POLL_S)
        write_whole(turn_file(run), turn_of_this_process().model_dump_json() + "\n")
        yield


def check_turn(run: Run) -> None:
    """Pass if nobody has taken the run over.

    Raises:
        Superseded: somebody has; names the flow run.
    """
    now = read_turn(run)
    if now is not None and now.token != _TOKEN:
        raise Superseded(
            f"run {run.run_id} was taken over by flow run {now.flow_run_id}: this one stops here "
            "and leaves it alone"
        )


@contextmanager
def idle(run: Run) -> Generator[bool]:
    """Whether no flow that lives has its turn on the run; none gets it until this is left."""
    with (run.folder / ".turn.lock").open("a") as file:
        yield take_lock(file)


def end_past_self(held: Turn | None) -> None:
    """End an earlier process of this very flow run: it hangs, or Prefect would not start anew."""
    if held is None or held.flow_run_id != str(flow_run.id):
        return
    try:
        process = held.process()
        if process and _OWNED in process.environ():
            process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass


def turn_of_this_process() -> Turn:
    return Turn(
        flow_run_id=str(flow_run.id),
        host=socket.gethostname(),
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        token=_TOKEN,
    )
