"""The exporter: `python -m tasks.metrics.exporter --port N` serves what the files say.

`/metrics` is for Prometheus; `/targets` tells it where the model servers of this home are
(http_sd), since they come and go while Prometheus runs. It reads and never writes.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tasks.home import Home
from tasks.metrics import catalogue as m
from tasks.metrics.catalogue import CATALOGUE, Sample
from tasks.metrics.followed import FollowedRun
from tasks.metrics.pipeline import pipeline_samples
from tasks.metrics.surroundings import Surroundings, model_servers
from tasks.metrics.training import training_samples
from tasks.ports import HOST
from tasks.run_dir import open_run

NEWEST_RUNS = 10
"""Runs with series of their own, by the last start of a flow on them."""
_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class _Silent(WSGIRequestHandler):
    """A scrape every few seconds is nothing to write down."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


class RunsCollector(Collector):
    """Reads the home on each scrape; what it has read once it does not read again."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._surroundings = Surroundings(home)
        self._followed: dict[str, FollowedRun] = {}
        self._lock = Lock()
        self._highest: dict[tuple[m.Metric, tuple[str, ...]], float] = {}
        """Of each counter: a clock that is set must not look like a restart to Prometheus."""

    def describe(self) -> Iterable[Metric]:
        """Nothing: to register must not scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            samples = self._never_falling([*self._samples(), *self._surroundings.samples()])
        return families(samples)

    def training_servers(self) -> list[str]:
        """host:port of the servers that play the episodes of attempts that are open."""
        with self._lock:
            followed = list(self._followed.values())
        files = [
            each.run.scratch_of_attempt(each.attempts[-1].number) / "inference-server.address"
            for each in followed
            if each.is_open
        ]
        return [file.read_text().strip() for file in files if file.is_file()]

    def _never_falling(self, samples: list[Sample]) -> list[Sample]:
        before, self._highest = self._highest, {}
        raised = []
        for sample in samples:
            if sample.metric.kind == "counter":
                key = (sample.metric, sample.labels)
                self._highest[key] = max(sample.value, before.get(key, 0.0))
                sample = replace(sample, value=self._highest[key])
            raised.append(sample)
        return raised

    def _samples(self) -> Iterator[Sample]:
        folders = sorted(self._home.runs.glob("*/run.json"), key=_mtime, reverse=True)
        names = [file.parent.name for file in folders[:NEWEST_RUNS]]
        self._followed = {name: self._followed[name] for name in names if name in self._followed}
        unreadable = 0
        for name in names:
            try:
                yield from self._of_run(name)
            except (OSError, ValueError):  # being deleted, or damaged: the others go on
                self._followed.pop(name, None)
                unreadable += 1
        yield Sample(m.RUNS, (), len(folders))
        yield Sample(m.UNREADABLE, (), unreadable)

    def _of_run(self, name: str) -> list[Sample]:
        if name not in self._followed:
            self._followed[name] = FollowedRun(open_run(self._home.runs, name))
        followed = self._followed[name]
        followed.look()
        return [*training_samples(followed), *pipeline_samples(followed)]


def families(samples: Iterable[Sample]) -> Iterator[Metric]:
    """Samples as Prometheus' families, in the catalogue's order."""
    by_metric = defaultdict(list)
    for sample in samples:
        by_metric[sample.metric].append(sample)
    for metric in CATALOGUE:
        if metric in by_metric:
            name = metric.name.removesuffix("_total")
            family = _FAMILIES[metric.kind](name, metric.explanation, labels=metric.labels)
            for sample in by_metric[metric]:
                family.add_metric(sample.labels, float(sample.value))
            yield family


def build(home: Home, port: int) -> WSGIServer:
    """A server on 127.0.0.1, to be run with `serve_forever`; port 0 takes a free one."""
    registry = CollectorRegistry()
    collector = RunsCollector(home)
    registry.register(collector)
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start_response)
        if environ["PATH_INFO"] == "/targets":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(targets(home, collector)).encode()]
        known = environ["PATH_INFO"] == "/health"
        start_response("200 OK" if known else "404 Not Found", [("Content-Type", "text/plain")])
        return [b"there are /metrics, /targets and /health\n"]

    return make_server(HOST, port, app, ThreadingWSGIServer, _Silent)


def targets(home: Home, collector: RunsCollector) -> list[dict[str, Any]]:
    """The model servers as Prometheus' http_sd wants them."""
    hosting = [
        {
            "targets": [server.address],
            "labels": {
                "serves": "hosting",
                "instance": server.name,
                "__metrics_path__": server.path,
            },
        }
        for server in model_servers(home)
    ]
    training = collector.training_servers()
    playing = [{"targets": training, "labels": {"serves": "training"}}] if training else []
    return [*hosting, *playing]


def _mtime(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # deleted since it was listed
        return 0.0


def main() -> None:
    """Serve the home of the environment until interrupted."""
    parser = argparse.ArgumentParser(description="Serve the metrics of a home")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    with build(Home.from_environment(), given.port) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
