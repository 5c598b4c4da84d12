"""Flows that die or are cancelled, on real services: what goes on by itself, and what is freed."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.client.schemas import FlowRun
from prefect.client.schemas.objects import StateType

from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tasks.run_dir import open_run
from tests.homes import address, cancel_running, find, flow_processes, kill_all, prefect_of, start
from tests.waiting import wait_until

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("recovery") / "home")
    try:
        yield home
    finally:
        Supervisord(home).shutdown()


def flow_runs(home: Home) -> list[FlowRun]:
    """Those that have begun."""
    with prefect_of(home) as prefect:
        return [run for run in prefect.read_flow_runs() if run.start_time]


def states(home: Home, run: FlowRun) -> list[tuple[str | None, str | None]]:
    """What a flow run went through, with the reasons."""
    with prefect_of(home) as prefect:
        return [(state.name, state.message) for state in prefect.read_flow_run_states(run.id)]


def test_a_flow_whose_process_is_killed_goes_on_as_the_same_run(home: Home, tmp_path: Path) -> None:
    running = start(home, tmp_path / "log", "--profile", "smoke")
    markers = "*/checkpoints/global_step_1/COMMITTED.json"
    wait_until(lambda: any(home.runs.glob(markers)) or running.poll() is not None, timeout_s=480)
    trainers = {process.pid for process in find(home, "containers.trainer.train_main")}
    kill_all(flow_processes(home))
    running.wait(timeout=600)
    assert running.returncode == 0, (tmp_path / "log").read_text()[-3000:]

    (run,) = flow_runs(home)
    assert (run.state_type, run.run_count) == (StateType.COMPLETED, 2), states(home, run)
    (folder,) = home.runs.iterdir()
    attempts = sorted((folder / "attempts").glob("*.json"))
    assert len(attempts) == 1 and trainers, "the training job went on and was adopted"
    steps = open_run(home.runs, folder.name).steps()
    assert [line.step for line in steps] == [1, 2, 3]


def test_a_cancelled_flow_frees_its_cluster_and_keeps_what_it_has(
    home: Home, tmp_path: Path
) -> None:
    running = start(home, tmp_path / "log", "--profile", "smoke", "--seed", "2")
    wait_until(
        lambda: bool(find(home, "containers.trainer.train_main")) or running.poll() is not None,
        timeout_s=240,
    )
    cancel_running(home)

    def is_freed() -> bool:
        gone = not find(home, "containers.trainer.train_main") and not flow_processes(home)
        names = [state.name for state in Supervisord(home).states()]
        return gone and not any(name.startswith("ray-") for name in names)

    wait_until(is_freed, timeout_s=30)
    assert running.wait(timeout=60) != 0
    assert "Cancelled" in (tmp_path / "log").read_text()
    (folder,) = [f for f in home.runs.iterdir() if '"seed": 2' in (f / "run.json").read_text()]
    attempt = json.loads((folder / "attempts" / "1.json").read_text())
    assert attempt["cause"] == "cancelled by a person"
    base = address(home, "mlflow_url") + "/api/2.0/mlflow"
    found = httpx.post(f"{base}/runs/search", json={"experiment_ids": ["1"]}, timeout=30).json()
    statuses = {run["info"]["run_name"]: run["info"]["status"] for run in found["runs"]}
    assert statuses[folder.name] == "KILLED"
