"""The services of one home: Prefect server, Prefect worker and MLflow server, on 127.0.0.1.

The metrics of the home are served beside them: see tasks/metrics/services.py.

`up` starts or adopts them and returns when all are healthy; `down` leaves no process behind.
They keep all they know in the home and look nothing up outside this machine.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
import psutil
from pydantic import BaseModel, ConfigDict

from configs.loader import ROOT
from tasks import ports
from tasks.backends.protocols import Processes, ProcessSpec
from tasks.backends.supervisord import Supervisord
from tasks.home import Home, cache_folder, write_private
from tasks.metrics import services as metrics_services
from tasks.metrics.services import MetricsServices
from tasks.words import clean, tail

POOL = "ariadne"
PREFECT, WORKER, MLFLOW = "prefect-server", "prefect-worker", "mlflow"

_START_TIMEOUT_S = 240
"""A Prefect server's first start migrates its database: more than a minute on a slow disk."""
_MAX_STARTS = 4
_TELLING = re.compile(
    r"^(\w+\.)*\w*(error|exception)\b|error: |cannot |in use|denied|no such", re.IGNORECASE
)


class Services(BaseModel):
    """Where the services answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefect_api_url: str
    prefect_ui_url: str
    mlflow_url: str

    @classmethod
    def at(cls, prefect_port: int, mlflow_port: int) -> Self:
        prefect = f"http://{ports.HOST}:{prefect_port}"
        mlflow = f"http://{ports.HOST}:{mlflow_port}"
        return cls(prefect_api_url=f"{prefect}/api", prefect_ui_url=prefect, mlflow_url=mlflow)

    @property
    def ports(self) -> tuple[int, int]:
        """Prefect's and MLflow's."""
        urls = (self.prefect_ui_url, self.mlflow_url)
        prefect, mlflow = (urlsplit(url).port or 80 for url in urls)
        return prefect, mlflow

    def url_of(self, name: str) -> str:
        """Where a person looks at it; empty where there is nothing to look at."""
        return {PREFECT: self.prefect_ui_url, MLFLOW: self.mlflow_url}.get(name, "")

    def environment(self, home: Home) -> dict[str, str]:
        """Variables under which flows and tools use these services and nothing else."""
        return _private(home) | {
            "PYTHONPATH": str(ROOT),
            "ARIADNE_HOME": str(home.root),
            "ARIADNE_CACHE": str(cache_folder()),
            "PREFECT_API_URL": self.prefect_api_url,
            "PREFECT_CLIENT_MAX_RETRIES": "10",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            # Backends know no Prefect; what they log is on the page of the run all the same.
            "PREFECT_LOGGING_EXTRA_LOGGERS": "tasks.backends",
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            # A tracker that is away is noticed at once and told later: its steps lie in files.
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        }


class ServiceState(BaseModel):
    """One line of `status`. Other kept processes have no URL and are healthy while they run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    healthy: bool
    url: str
    description: str


def up(home: Home) -> Services:
    """Start what does not run, adopt what does.

    Raises:
        RuntimeError: a port that was asked for is taken, or a service does not get healthy.
    """
    processes = Supervisord(home)
    processes.clear()
    with home.locked("services"):
        services = _choose(home, processes)
        metrics = metrics_services.choose(home, processes)
        write_private(home.services_file, services.model_dump_json(indent=1) + "\n")
        processes.ensure(_prefect_server(home, services))
        processes.ensure(_mlflow_server(home, services))
        metrics_services.ensure(home, processes, metrics, services.environment(home))
    _await(home, processes, PREFECT, services)
    processes.ensure(_prefect_worker(home, services))
    _await(home, processes, MLFLOW, services)
    _await(home, processes, WORKER, services)
    metrics_services.await_health(metrics)
    return services


def down(home: Home) -> None:
    """End everything of this home: services, running flows, clusters, model servers."""
    processes = Supervisord(home)
    # First, so that its flow runs can still tell the server how they ended.
    processes.stop(WORKER)
    processes.shutdown()
    home.services_file.unlink(missing_ok=True)
    metrics_services.forget(home)
    shutil.rmtree(home.runtime / "ray", ignore_errors=True)  # logs and sockets of dead clusters


def status(home: Home) -> list[ServiceState]:
    """The services, and every other process that is kept."""
    processes = Supervisord(home)
    services = _recorded(home)
    metrics = MetricsServices.recorded(home)
    states = {state.name: state for state in processes.states()}
    ours = (PREFECT, WORKER, MLFLOW, *(metrics.names if metrics else ()))
    report = []
    for name in (*ours, *sorted(states.keys() - set(ours))):
        state = states.get(name)
        healthy = state is not None and state.running
        if healthy and name in ours:
            if metrics and name in metrics.names:
                healthy = metrics_services.is_healthy(metrics, name)
            else:
                healthy = services is not None and _is_healthy(processes, name, services)
        url = services.url_of(name) if services else ""
        url = url or (metrics.url_of(name) if metrics else "")
        said = state.description if state else "not running"
        report.append(ServiceState(name=name, healthy=healthy, url=url, description=said))
    return report


def find(home: Home) -> Services:
    """The services that run.

    Raises:
        RuntimeError: they do not; names the command that starts them.
    """
    services = _recorded(home)
    state = Supervisord(home).state(PREFECT)
    if services is None or state is None or not state.running:
        raise RuntimeError(f"no services run in {home.root}; start them with `make up`")
    return services


def _recorded(home: Home) -> Services | None:
    file = home.services_file
    return Services.model_validate_json(file.read_text()) if file.is_file() else None


def _choose(home: Home, processes: Processes) -> Services:
    """Keep the ports of before where possible. Starts nothing."""
    recorded = _recorded(home)
    last = recorded.ports if recorded else (None, None)
    running = {state.name for state in processes.states() if state.running}
    chosen: list[int] = []
    for name, variable, usual, before in (
        (PREFECT, "ARIADNE_PREFECT_PORT", 4200, last[0]),
        (MLFLOW, "ARIADNE_MLFLOW_PORT", 5000, last[1]),
    ):
        preferred = [port for port in (before, usual) if port and port not in chosen]
        held = [before] if before and name in running else []
        chosen.append(ports.choose(variable, preferred, held))
    if chosen[0] == chosen[1]:
        raise ValueError(f"Prefect and MLflow cannot both have port {chosen[0]}; change one")
    return Services.at(*chosen)


def _private(home: Home) -> dict[str, str]:
    """Keeps Prefect and MLflow in the home, and from telling or asking anybody outside."""
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "DO_NOT_TRACK": "true",
    }


def _prefect_server(home: Home, services: Services) -> ProcessSpec:
    command = ("prefect", "server", "start")
    address = ("--host", ports.HOST, "--port", str(services.ports[0]))
    # Without it the pages ask the default port, whatever port the server has.
    pages = {"PREFECT_SERVER_UI_API_URL": services.prefect_api_url}
    return _spec(home, PREFECT, (*command, *address), _private(home) | pages, home.prefect)


def _prefect_worker(home: Home, services: Services) -> ProcessSpec:
    command = ("prefect", "worker", "start", "--type", "process", "--install-policy", "never")
    names = ("--pool", POOL, "--name", "local")
    return _spec(home, WORKER, (*command, *names), services.environment(home), ROOT)


def _mlflow_server(home: Home, services: Services) -> ProcessSpec:
    command = (
        *("mlflow", "server", "--host", ports.HOST, "--port", str(services.ports[1])),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{home.mlflow}/mlflow.db"),
        *("--serve-artifacts", "--artifacts-destination", str(home.mlflow / "artifacts")),
    )
    return _spec(home, MLFLOW, command, _private(home), home.mlflow)


def _spec(
    home: Home, name: str, module: tuple[str, ...], environment: dict[str, str], directory: Path
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-m", *module),
        environment=environment,
        directory=directory,
        log=_log(home, name),
        restart=True,
        stop_timeout_s=10,
    )


def _log(home: Home, name: str) -> Path:
    return home.logs / f"{name}.log"


def _await(home: Home, processes: Processes, name: str, services: Services) -> None:
    """Wait until healthy; give up early on what starts again and again."""
    log = _log(home, name)
    begin = time.monotonic()
    pids: set[int] = set()
    while not _is_healthy(processes, name, services):
        state = processes.state(name)
        pids |= {state.pid} if state and state.pid else set()
        fault = None
        if state is None or len(pids) > _MAX_STARTS or state.description.startswith("fatal"):
            fault = "does not start"
        elif time.monotonic() - begin > _START_TIMEOUT_S:
            fault = f"is not healthy after {_START_TIMEOUT_S} s"
        if fault:
            raise RuntimeError(f"{name} {fault}: {_telling_line(log)} (see {log})")
        time.sleep(0.3)


def _is_healthy(processes: Processes, name: str, services: Services) -> bool:
    checks: dict[str, Callable[[], bool]] = {
        PREFECT: lambda: _answers(f"{services.prefect_api_url}/ready"),
        MLFLOW: lambda: _answers(f"{services.mlflow_url}/health"),
        WORKER: lambda: _is_online(processes, services),
    }
    try:
        return checks[name]()
    except httpx.HTTPError:
        return False


def _answers(url: str) -> bool:
    with _client() as client:
        return client.get(url).is_success


def _is_online(processes: Processes, services: Services) -> bool:
    """Heard of since it was started: the server calls a worker online for a while after it died."""
    state = processes.state(WORKER)
    if state is None or state.pid is None:
        return False
    with _client() as client:
        url = f"{services.prefect_api_url}/work_pools/{POOL}/workers/filter"
        answer = client.post(url, json={})
    beats = [worker["last_heartbeat_time"] for worker in answer.json()] if answer.is_success else []
    try:
        started = psutil.Process(state.pid).create_time()
    except psutil.NoSuchProcess:
        return False
    return any(datetime.fromisoformat(beat).timestamp() > started for beat in beats if beat)


def _client() -> httpx.Client:
    # No proxy between this machine and itself; all is http, and to load certificates is slow.
    return httpx.Client(trust_env=False, verify=False, timeout=5)


def _telling_line(log: Path) -> str:
    """The last line that tells what went wrong, else the last line."""
    lines = [clean(line.strip()) for line in tail(log).splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["it said nothing"])[-1]
