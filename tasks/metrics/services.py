"""The exporter and Prometheus beside the other services of a home, on 127.0.0.1.

Prometheus is a program of the machine and may be missing; all else works without it. It keeps
what it was told in the home, thirty days or two gigabytes of it.
"""

import shutil
import sys
import time
from pathlib import Path
from string import Template
from typing import Self

import httpx
from pydantic import BaseModel, ConfigDict

from configs.digests import digest_of
from configs.loader import ROOT
from tasks import ports
from tasks.backends.protocols import Processes, ProcessSpec
from tasks.home import Home, write_private

EXPORTER, PROMETHEUS = "metrics-exporter", "prometheus"
HOW_TO_GET_PROMETHEUS = "no Prometheus here: `apt-get install prometheus`, then `make up` starts it"
_CONFIGS = ROOT / "configs" / "prometheus"
_RETENTION = ("--storage.tsdb.retention.time=30d", "--storage.tsdb.retention.size=2GB")
_START_TIMEOUT_S = 30


class MetricsServices(BaseModel):
    """Where metrics are; no Prometheus has an empty address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exporter_url: str
    prometheus_url: str

    @classmethod
    def recorded(cls, home: Home) -> Self | None:
        """What was started last."""
        file = _file(home)
        return cls.model_validate_json(file.read_text()) if file.is_file() else None

    def url_of(self, name: str) -> str:
        """Of a service; empty where there is none of this name."""
        return {EXPORTER: self.exporter_url, PROMETHEUS: self.prometheus_url}.get(name, "")

    @property
    def names(self) -> list[str]:
        return [EXPORTER, PROMETHEUS] if self.prometheus_url else [EXPORTER]


def ensure(
    home: Home, processes: Processes, chosen: MetricsServices, environment: dict[str, str]
) -> None:
    """Start the exporter, and Prometheus where the machine has it, or adopt them."""
    write_private(_file(home), chosen.model_dump_json(indent=1) + "\n")
    processes.ensure(_exporter(home, chosen, environment))
    if chosen.prometheus_url:
        processes.ensure(_prometheus(home, chosen))
    else:
        processes.remove(PROMETHEUS)  # of a time when the machine had it


def choose(home: Home, processes: Processes) -> MetricsServices:
    """The addresses of before where possible. Starts nothing.

    Raises:
        RuntimeError, ValueError: a port that was asked for is taken, or is no port.
    """
    before = MetricsServices.recorded(home)
    running = {state.name for state in processes.states() if state.running}
    urls = {}
    for name, variable, usual in (
        (EXPORTER, "ARIADNE_EXPORTER_PORT", 9464),
        (PROMETHEUS, "ARIADNE_PROMETHEUS_PORT", 9090),
    ):
        last = httpx.URL(before.url_of(name)).port if before and before.url_of(name) else None
        held = [last] if last and name in running else []
        preferred = [port for port in (last, usual) if port]
        urls[name] = f"http://{ports.HOST}:{ports.choose(variable, preferred, held)}"
    has_prometheus = shutil.which("prometheus") is not None
    return MetricsServices(
        exporter_url=urls[EXPORTER], prometheus_url=urls[PROMETHEUS] if has_prometheus else ""
    )


def forget(home: Home) -> None:
    """That they were started; for when all of the home is down."""
    _file(home).unlink(missing_ok=True)


def await_health(found: MetricsServices) -> None:
    """Wait for them, but not for long: they are views, and the status says what is missing."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and not all(is_healthy(found, n) for n in found.names):
        time.sleep(0.2)


def is_healthy(found: MetricsServices, name: str) -> bool:
    path = {EXPORTER: "/health", PROMETHEUS: "/-/ready"}[name]
    try:
        with httpx.Client(trust_env=False, verify=False, timeout=5) as client:
            return client.get(found.url_of(name) + path).is_success
    except httpx.HTTPError:
        return False


def prometheus_config(exporter: str, rules: Path, ray_targets: Path) -> str:
    """Prometheus' own file; `exporter` is host:port."""
    template = Template((_CONFIGS / "local.yml").read_text())
    return template.substitute(exporter=exporter, rules=rules, ray_targets=ray_targets)


def _exporter(home: Home, found: MetricsServices, environment: dict[str, str]) -> ProcessSpec:
    port = str(httpx.URL(found.exporter_url).port)
    return ProcessSpec(
        name=EXPORTER,
        command=(sys.executable, "-m", "tasks.metrics.exporter", "--port", port),
        environment=environment,
        directory=ROOT,
        log=home.logs / f"{EXPORTER}.log",
        restart=True,
        stop_timeout_s=5,
    )


def _prometheus(home: Home, found: MetricsServices) -> ProcessSpec:
    folder = home.root / "prometheus"
    folder.mkdir(mode=0o700, exist_ok=True)
    address = found.prometheus_url.removeprefix("http://")
    rules = (_CONFIGS / "alerts.yml").read_text()
    write_private(folder / "alerts.yml", rules)
    config = prometheus_config(
        found.exporter_url.removeprefix("http://"),
        folder / "alerts.yml",
        home.runtime / "ray" / "prom_metrics_service_discovery.json",
    )
    write_private(folder / "prometheus.yml", config)
    binary = shutil.which("prometheus")
    assert binary is not None  # found.prometheus_url says so
    return ProcessSpec(
        name=PROMETHEUS,
        command=(
            *(binary, f"--config.file={folder / 'prometheus.yml'}"),
            *(f"--storage.tsdb.path={folder / 'data'}", *_RETENTION),
            *(f"--web.listen-address={address}", "--log.level=warn"),
        ),
        # Another configuration is another process; Prometheus would not read it again.
        environment={"ARIADNE_READS": digest_of([config, rules])},
        directory=folder,
        log=home.logs / f"{PROMETHEUS}.log",
        restart=True,
        stop_timeout_s=10,
    )


def _file(home: Home) -> Path:
    return home.services / "metrics.json"
