"""Flows that die or are cancelled, on real services: what goes on by itself, and what is freed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tasks.run_dir import open_run
from tests.homes import find, ours, start
from tests.waiting import wait_until

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("recovery") / "home")
    try:
        yield home
    finally:
        Supervisord(home).shutdown()


def api(home: Home, service: str) -> str:
    return json.loads(home.services_file.read_text())[service]


def flow_runs(home: Home) -> list[dict[str, Any]]:
    """The newest first."""
    url = api(home, "prefect_api_url") + "/flow_runs/filter"
    runs = httpx.post(url, json={"sort": "START_TIME_DESC"}, timeout=30).json()
    return [run for run in runs if run["start_time"]]


def states(home: Home, run_id: str) -> list[tuple[str, str]]:
    """What a flow run went through, with the reasons."""
    url = api(home, "prefect_api_url") + "/flow_run_states/"
    found = httpx.get(url, params={"flow_run_id": run_id}, timeout=30).json()
    return [(state["name"], state["message"]) for state in found]


def flow_processes(home: Home) -> list[psutil.Process]:
    """The processes of running flows, by the variable that tells them which run they are."""
    return [p for p, _ in ours(home) if "PREFECT__FLOW_RUN_ID" in p.environ()]


def test_a_flow_whose_process_is_killed_goes_on_as_the_same_run(home: Home, tmp_path: Path) -> None:
    running = start(home, tmp_path / "log", "--profile", "smoke")
    markers = "*/checkpoints/global_step_1/COMMITTED.json"
    wait_until(lambda: any(home.runs.glob(markers)) or running.poll() is not None, timeout_s=480)
    trainers = {process.pid for process in find(home, "containers.trainer.train_main")}
    for process in flow_processes(home):
        process.kill()
    running.wait(timeout=600)
    assert running.returncode == 0, (tmp_path / "log").read_text()[-3000:]

    (run,) = flow_runs(home)
    assert (run["state_type"], run["run_count"]) == ("COMPLETED", 2), states(home, run["id"])
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
    (run_id,) = {run["id"] for run in flow_runs(home) if run["state_type"] == "RUNNING"}
    url = f"{api(home, 'prefect_api_url')}/flow_runs/{run_id}/set_state"
    httpx.post(url, json={"state": {"type": "CANCELLING"}}, timeout=30).raise_for_status()

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
    base = api(home, "mlflow_url") + "/api/2.0/mlflow"
    found = httpx.post(f"{base}/runs/search", json={"experiment_ids": ["1"]}, timeout=30).json()
    statuses = {run["info"]["run_name"]: run["info"]["status"] for run in found["runs"]}
    assert statuses[folder.name] == "KILLED"
