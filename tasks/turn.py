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
from pathlib import Path
from typing import Self
from uuid import uuid4

import psutil
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict

from tasks.home import take_lock
from tasks.records import write_whole
from tasks.run_dir import Run

_POLL_S = 1.0
_TOKEN = uuid4().hex
_CLOCK_MAY_MOVE_S = 60
_OWNED = "PREFECT__FLOW_RUN_ID"
"""Prefect tells every process of a flow run which run it is."""


class Superseded(RuntimeError):
    """Another flow works on this run by now."""


class Turn(BaseModel):
    """turn.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flow_run_id: str
    host: str
    pid: int
    started: float
    """Of the process, in seconds since 1970: numbers of processes are used again."""
    token: str
    """Nobody else's: start times are computed anew whenever the clock is set."""

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(
            flow_run_id=str(flow_run.id),
            host=socket.gethostname(),
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            token=_TOKEN,
        )


@contextmanager
def turn(run: Run) -> Generator[None]:
    """Work on the run alone; waits for another flow that does, and ends our own past self."""
    with (run.folder / ".turn.lock").open("a") as file:
        if not take_lock(file):
            end_past_self(read_turn(run))
            get_run_logger().info("turn: waiting for another flow on run %s", run.run_id)
            while not take_lock(file):
                time.sleep(_POLL_S)
        write_whole(_file(run), Turn.of_this_process().model_dump_json() + "\n")
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


def read_turn(run: Run) -> Turn | None:
    """Who has the run, or had it last."""
    try:
        return Turn.model_validate_json(_file(run).read_text())
    except (FileNotFoundError, ValueError):
        return None


def end_past_self(held: Turn | None) -> None:
    """End an earlier process of this very flow run: it hangs, or Prefect would not start anew."""
    if held is None or held.flow_run_id != str(flow_run.id) or held.host != socket.gethostname():
        return
    try:
        process = psutil.Process(held.pid)
        is_it = abs(process.create_time() - held.started) < _CLOCK_MAY_MOVE_S
        if is_it and _OWNED in process.environ():
            process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass


def _file(run: Run) -> Path:
    return run.folder / "turn.json"
