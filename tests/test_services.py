"""The services, started for real: Prefect server and worker, MLflow, supervisord."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from configs.loader import ROOT
from tasks import services
from tasks.backends import leftovers
from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tasks.metrics.services import (
    EXPORTER,
    HOW_TO_GET_PROMETHEUS,
    PROMETHEUS,
    MetricsServices,
)
from tasks.services import MLFLOW, PREFECT, WORKER, Services
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def no_port_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARIADNE_PREFECT_PORT", raising=False)
    monkeypatch.delenv("ARIADNE_MLFLOW_PORT", raising=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("services"))
    yield home
    services.down(home)
    shutil.rmtree(home.runtime)


@pytest.fixture(scope="module")
def found(home: Home) -> Services:
    return services.up(home)


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Home]:
    """A home in which nothing ever runs."""
    home = Home(tmp_path / "home")
    yield home
    shutil.rmtree(home.runtime, ignore_errors=True)


def started_by(home: Home) -> set[psutil.Process]:
    return leftovers.marked({leftovers.MARK: str(home.root)})


def pid_of(home: Home, name: str) -> int:
    state = Supervisord(home).state(name)
    assert state is not None and state.pid is not None
    return state.pid


def all_healthy(home: Home) -> bool:
    return all(state.healthy for state in services.status(home))


def flows(home: Home, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a home of its own."""
    return subprocess.run(
        [sys.executable, "-m", "flows", *arguments],
        cwd=ROOT,
        env={**os.environ, "ARIADNE_HOME": str(home.root), **environment},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


def test_an_asked_for_port_that_is_taken_gives_one_line_and_starts_nothing(idle: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = flows(idle, "up", ARIADNE_MLFLOW_PORT=port)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port} is taken by" in done.stderr and f"pid {os.getpid()}" in done.stderr
    assert "set ARIADNE_MLFLOW_PORT to another port" in done.stderr
    assert not started_by(idle)


def test_a_port_that_is_no_port_gives_one_line(idle: Home) -> None:
    done = flows(idle, "up", ARIADNE_PREFECT_PORT="http")
    assert done.returncode == 1
    assert (
        done.stderr == "ariadne: ARIADNE_PREFECT_PORT is 'http'; give a port from 1024 to 65535\n"
    )


def test_status_of_a_home_that_is_down_exits_with_3_and_makes_nothing(idle: Home) -> None:
    done = flows(idle, "status")
    assert done.returncode == 3 and "not running" in done.stdout
    assert not idle.root.exists()


def test_up_brings_all_services_to_health(home: Home, found: Services) -> None:
    expected = [PREFECT, WORKER, MLFLOW, EXPORTER, PROMETHEUS]
    assert [state.name for state in services.status(home)] == expected
    assert all_healthy(home)
    assert httpx.get(f"{found.prefect_api_url}/ready", timeout=10).is_success
    assert httpx.get(f"{found.mlflow_url}/health", timeout=10).is_success
    assert services.find(home) == found
    assert flows(home, "status").returncode == 0


def test_up_has_prometheus_scrape_the_exporter_by_rules_it_accepts(
    home: Home, found: Services
) -> None:
    metrics = MetricsServices.recorded(home)
    assert metrics is not None
    config = home.root / "prometheus" / "prometheus.yml"
    checked = subprocess.run(
        ["promtool", "check", "config", str(config)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    api = f"{metrics.prometheus_url}/api/v1"

    def value(query: str) -> list[str]:
        answer = httpx.get(f"{api}/query", params={"query": query}, timeout=10).raise_for_status()
        return [series["value"][1] for series in answer.json()["data"]["result"]]

    wait_until(lambda: value('up{job="ariadne"}') == ["1"])
    wait_until(lambda: value('ariadne_source_up{source="prefect"}') == ["1"])
    assert value('ariadne_flow_runs{state="running"}') == ["0"]


def test_a_second_up_adopts_what_runs_and_keeps_its_ports(home: Home, found: Services) -> None:
    before = {name: pid_of(home, name) for name in (PREFECT, WORKER, MLFLOW)}
    assert services.up(home) == found
    assert {name: pid_of(home, name) for name in before} == before


def test_a_service_killed_at_once_is_started_again(home: Home, found: Services) -> None:
    killed = pid_of(home, MLFLOW)
    # Its child has the port and outlives it for a moment, so health alone would prove nothing.
    before = leftovers.group(killed)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not any(leftovers.alive(process) for process in before))
    wait_until(lambda: all_healthy(home), timeout_s=90)
    assert pid_of(home, MLFLOW) != killed


def test_without_prometheus_up_works_and_says_how_to_get_it(home: Home, found: Services) -> None:
    done = flows(home, "up", PATH=str(Path(sys.executable).parent))
    assert done.returncode == 0 and HOW_TO_GET_PROMETHEUS in done.stdout, done.stderr
    assert PROMETHEUS not in [state.name for state in services.status(home)]
    services.up(home)
    assert PROMETHEUS in [state.name for state in services.status(home)] and all_healthy(home)


def test_an_artifact_goes_through_the_server_into_the_home(home: Home, found: Services) -> None:
    address = f"{found.mlflow_url}/api/2.0/mlflow-artifacts/artifacts/folder/file.txt"
    assert httpx.put(address, content=b"kept", timeout=30).is_success
    assert (home.mlflow / "artifacts" / "folder" / "file.txt").read_bytes() == b"kept"


def test_down_leaves_no_process_and_no_record(home: Home, found: Services) -> None:
    before = started_by(home)
    assert len(before) >= 4
    services.down(home)
    assert not started_by(home)
    assert not any(leftovers.alive(process) for process in before)
    with pytest.raises(RuntimeError, match="start them with `make up`"):
        services.find(home)
