"""The services of a machine: Prefect server, Prefect worker and MLflow, on 127.0.0.1.

`up` starts or adopts them and returns when all are healthy; `down` leaves no process behind.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from pydantic import BaseModel, ConfigDict

from configs.loader import ROOT
from tasks.backends.protocols import ProcessSpec, ProcessState
from tasks.backends.supervisord import Supervisord
from tasks.home import Home

HOST = "127.0.0.1"
POOL = "ariadne"
_PREFERRED_PORTS = {"PREFECT": 4200, "MLFLOW": 5000}
_START_TIMEOUT_S = 240


class Services(BaseModel):
    """Where the services answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefect_port: int
    mlflow_port: int

    @property
    def prefect_api_url(self) -> str:
        return f"http://{HOST}:{self.prefect_port}/api"

    @property
    def prefect_ui_url(self) -> str:
        return f"http://{HOST}:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        return f"http://{HOST}:{self.mlflow_port}"

    def environment(self, home: Home) -> dict[str, str]:
        """Variables under which flows and their tools find these services and nothing else."""
        return {
            **home.environment(),
            "PYTHONPATH": str(ROOT),
            "PREFECT_HOME": str(home.path / "prefect"),
            "PREFECT_API_URL": self.prefect_api_url,
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_CLIENT_MAX_RETRIES": "10",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
        }


def up(home: Home) -> Services:
    """Start what does not run, adopt what does.

    Raises:
        RuntimeError: a port that was asked for is taken, or a service does not become healthy.
    """
    supervisor = Supervisord(home)
    services = _running(home, supervisor) or Services(
        prefect_port=_choose_port("PREFECT"), mlflow_port=_choose_port("MLFLOW")
    )
    supervisor.start()
    (home.services / "services.json").write_text(services.model_dump_json() + "\n")
    for spec in (_prefect_server(home, services), _mlflow_server(home, services)):
        supervisor.ensure(spec)
    _await(supervisor, "prefect-server", home, _answers(f"{services.prefect_api_url}/ready"))
    supervisor.ensure(_prefect_worker(home, services))
    _await(supervisor, "mlflow", home, _answers(f"{services.mlflow_url}/health"))
    _await(supervisor, "prefect-worker", home, lambda: _worker_is_online(services))
    return services


def down(home: Home) -> None:
    """Stop everything of this home: services, clusters, model servers, running flows."""
    Supervisord(home).shutdown()


def status(home: Home) -> list[ProcessState]:
    """Every process of this home; empty when it is down."""
    return sorted(Supervisord(home).states(), key=lambda state: state.name)


def find(home: Home) -> Services:
    """The services that run.

    Raises:
        RuntimeError: they do not; names the command that starts them.
    """
    services = _running(home, Supervisord(home))
    if services is None:
        raise RuntimeError(f"no services run in {home.path}: start them with `make up`")
    return services


def _running(home: Home, supervisor: Supervisord) -> Services | None:
    file = home.services / "services.json"
    if supervisor.state("prefect-server") is None or not file.is_file():
        return None
    return Services.model_validate_json(file.read_text())


def _prefect_server(home: Home, services: Services) -> ProcessSpec:
    command = (sys.executable, "-m", "prefect", "server", "start")
    port = ("--host", HOST, "--port", str(services.prefect_port))
    return _spec(home, services, "prefect-server", (*command, *port))


def _prefect_worker(home: Home, services: Services) -> ProcessSpec:
    command = (sys.executable, "-m", "prefect", "worker", "start")
    pool = ("--pool", POOL, "--type", "process", "--name", "local")
    return _spec(home, services, "prefect-worker", (*command, *pool))


def _mlflow_server(home: Home, services: Services) -> ProcessSpec:
    folder = home.path / "mlflow"
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    command = (
        *(sys.executable, "-m", "mlflow", "server", "--host", HOST),
        *("--port", str(services.mlflow_port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--artifacts-destination", str(folder / "artifacts"), "--serve-artifacts"),
    )
    return _spec(home, services, "mlflow", command)


def _spec(home: Home, services: Services, name: str, command: tuple[str, ...]) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        command=command,
        environment=services.environment(home),
        directory=ROOT,
        log=home.logs / f"{name}.log",
        restart=True,
    )


def _choose_port(service: str) -> int:
    """The port asked for in ARIADNE_<service>_PORT, or the usual one, or any free one."""
    asked = os.environ.get(f"ARIADNE_{service}_PORT")
    if asked is None:
        usual = _PREFERRED_PORTS[service]
        return usual if _is_free(usual) else _any_free_port()
    if not asked.isdigit() or not 1024 <= int(asked) <= 65535:
        raise RuntimeError(f"ARIADNE_{service}_PORT is {asked!r}: give a port from 1024 to 65535")
    if not _is_free(int(asked)):
        raise RuntimeError(
            f"port {asked} is taken by {_owner(int(asked))}: stop it, or set "
            f"ARIADNE_{service}_PORT to another port, or leave it out to have a free one found"
        )
    return int(asked)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _owner(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "another process"


def _answers(url: str) -> Callable[[], bool]:
    def check() -> bool:
        try:
            return httpx.get(url, timeout=5).is_success
        except httpx.HTTPError:
            return False

    return check


def _worker_is_online(services: Services) -> bool:
    url = f"{services.prefect_api_url}/work_pools/{POOL}/workers/filter"
    try:
        answer = httpx.post(url, json={}, timeout=5)
    except httpx.HTTPError:
        return False
    return answer.is_success and any(worker["status"] == "ONLINE" for worker in answer.json())


def _await(supervisor: Supervisord, name: str, home: Home, is_healthy: Callable[[], bool]) -> None:
    log = home.logs / f"{name}.log"
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not is_healthy():
        state = supervisor.state(name)
        ended = state is None or not state.running
        if ended or time.monotonic() > deadline:
            fault = "ended while starting" if ended else f"is not healthy after {_START_TIMEOUT_S} s"
            raise RuntimeError(f"{name} {fault}: {_last_line(log)} (log: {log})")
        time.sleep(0.3)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it said nothing")
