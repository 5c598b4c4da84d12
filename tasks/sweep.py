"""What dead flow runs left behind is found and freed: clusters with their jobs, open attempts,
MLflow runs that claim to run, half-published adapters, a change of what serves that was never
seen through.

Only what nobody works on is touched, and only when its flow run is over for good: one that waits
to be resumed still wants its cluster and the job in it. What cannot be freed does not keep the
rest waiting.
"""

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger

from tasks import attempts
from tasks.backends.wiring import make_backends
from tasks.cancel import read_holder
from tasks.failures import LOST_CLUSTER
from tasks.home import Home, take_lock
from tasks.host import put_back
from tasks.run_dir import Run, open_run
from tasks.turn import idle, read_turn

_SETTLED_S = 120
"""A crashed run is scheduled again well within this; until then it is not over for good."""
_HALF_PUBLISHED_S = 3600
"""An adapter takes seconds to publish: what is still hidden after an hour never will be."""


@task(task_run_name="sweep clusters", cache_policy=NO_CACHE)
def sweep_clusters(home: Home) -> list[str]:
    """Free clusters whose flow run is over; their names."""
    freed: list[str] = []
    for path in sorted(home.runtime.glob("cluster-*.lock")):
        with _on_its_own(path.stem):
            freed += _free_cluster(path, home)
    _say("clusters", freed)
    return freed


@task(task_run_name="sweep runs", cache_policy=NO_CACHE)
def sweep_runs(home: Home) -> list[str]:
    """Close what dead flows left open in run directories and in the tracker; the runs' names."""
    closed: list[str] = []
    for file in sorted(home.runs.glob("*/run.json")):
        with _on_its_own(file.parent.name):
            run = open_run(home.runs, file.parent.name)
            held = read_turn(run)
            if held is None or not is_over(held.flow_run_id):
                continue
            with idle(run) as is_idle:
                if is_idle and _close(run, home):
                    closed.append(run.run_id)
    _say("runs", closed)
    return closed


@task(task_run_name="sweep hosting", cache_policy=NO_CACHE)
def sweep_hosting(home: Home) -> list[str]:
    """Have the champion serve that a flow began to replace and died; its digest."""
    found: list[str] = []
    with _on_its_own("hosting"):
        digest = put_back(home)
        found += [digest] if digest else []
    _say("hosting", found)
    return found


def is_over(flow_run_id: str) -> bool:
    """The flow run has ended and will not go on by itself; one that was deleted has, too."""
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return True
    if run.state is None or not run.state.is_final():
        return False
    return time.time() - run.state.timestamp.timestamp() > _SETTLED_S


@contextmanager
def _on_its_own(name: str) -> Generator[None]:
    """A thing that cannot be freed now is told, and tried again by the next sweep."""
    try:
        yield
    except Exception as error:
        get_run_logger().warning("sweep: %s is left for the next sweep: %s", name, error)


def _free_cluster(path: Path, home: Home) -> list[str]:
    """Stop the cluster of this lock if nobody works on it; its name."""
    holder = read_holder(path)
    if holder is None or not is_over(holder.flow_run_id):
        return []
    with path.open("a") as file:
        if not take_lock(file):  # another flow has it by now
            return []
        config = open_run(home.runs, holder.run_id).config
        make_backends(config, home).clusters.stop(config.name)
        file.truncate(0)
    return [config.name]


def _close(run: Run, home: Home) -> bool:
    """End the open attempt and the tracker's run, and drop what is half-published."""
    known = attempts.all_attempts(run.attempts)
    was_open = bool(known) and known[-1].ended is None
    if was_open:
        reason = f"{LOST_CLUSTER.cause}: its flow died and nobody took it over"
        attempts.end(run.attempts, known[-1], run.committed_step(), reason, LOST_CLUSTER.cause)
    half = [path for path in run.adapters.glob(".step_*") if _age_s(path) > _HALF_PUBLISHED_S]
    for folder in half:
        shutil.rmtree(folder)
    tracker = make_backends(run.config, home).tracker
    was_running = tracker.is_running(run.run_id)
    if was_running:
        tracker.close(run.run_id, "FAILED")
    return was_open or was_running or bool(half)


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _say(what: str, names: list[str]) -> None:
    get_run_logger().info("sweep: %s: %s", what, ", ".join(names) or "nothing to free")
