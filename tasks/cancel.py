"""What a cancelled flow run held is freed: its cluster with all that runs in it.

The flow's process is dead by then, so this runs in the worker. Committed checkpoints stay, and
starting the same configuration again goes on from the newest.
"""

import time
from pathlib import Path
from typing import IO, Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from pydantic import ValidationError

from tasks import attempts
from tasks.cluster import Holder
from tasks.context import Context, reopen
from tasks.failures import CANCELLED
from tasks.home import Home, take_lock

_TIMEOUT_S = 20
_POLL_S = 0.2


def release_cancelled(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect calls this once the process of a cancelled flow run has ended."""
    for path in Home.from_environment().runtime.glob("cluster-*.lock"):
        holder = read_holder(path)
        if holder and holder.flow_run_id == str(flow_run.id):
            with path.open("a+") as file:
                if _take(file):  # else another flow has it by now, and it is not ours to free
                    _free(reopen(holder.run_id))


def read_holder(path: Path) -> Holder | None:
    """Who holds the cluster of this lock, or held it last without giving it back."""
    try:
        return Holder.model_validate_json(path.read_text())
    except ValidationError:
        return None


def _take(file: IO[str]) -> bool:
    """The kernel gives the lock back when the last process that held it is gone."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (taken := take_lock(file)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return taken


def _free(context: Context) -> None:
    """Stop what runs, then say everywhere how it ended."""
    context.backends.clusters.stop(context.config.name)
    run = context.run
    known = attempts.all_attempts(run.attempts)
    if known and known[-1].ended is None:
        cause = CANCELLED.cause
        attempts.end(run.attempts, known[-1], run.committed_step(), cause, cause)
    context.backends.tracker.close(run.run_id, "KILLED")
