"""A Ray cluster on this machine: a head and worker raylets, each a supervised process group.

Killing the group of a worker is the death of a node. The head has no CPUs to give: like the
head of a real cluster it only runs the drivers.
"""

import os
import re
import time
from pathlib import Path

from pydantic import BaseModel

from configs.digests import digest_of
from configs.schema import ClusterConfig
from tasks.backends import leftovers, stacks
from tasks.backends.protocols import Cluster, Image, Planned, Processes, ProcessSpec
from tasks.backends.ray_nodes import count_nodes, count_surely
from tasks.home import Home
from tasks.ports import any_free

HOST = "127.0.0.1"


class _Ports(BaseModel):
    gcs: int
    dashboard: int
    made_of: str
    """Digest of the configuration and the image that the cluster was started with."""


class LocalRay:
    """Implements `ClusterBackend` with supervised raylets."""

    def __init__(self, home: Home, processes: Processes) -> None:
        self._home = home
        self._processes = processes

    def find(self, name: str, config: ClusterConfig, image: Image) -> Cluster | None:
        ports = self._read_ports(name)
        if ports is None or ports.made_of != _made_of(config, image):
            return None
        alive = count_surely(_url(ports))
        if alive != 1 + config.num_workers:
            return None
        return self._cluster(name, ports, alive)

    def start(self, name: str, config: ClusterConfig, image: Image) -> Cluster:
        """Start all raylets and wait for them.

        Raises:
            RuntimeError: they did not come up in time; names the logs.
        """
        self.stop(name)
        ports = _Ports(gcs=any_free(), dashboard=any_free(), made_of=_made_of(config, image))
        self._file(name).write_text(ports.model_dump_json())
        self._processes.ensure(self._head(name, config, image, ports))
        deadline = time.monotonic() + config.start_timeout_s
        self._await_nodes(name, ports, 1, deadline)
        for number in range(1, config.num_workers + 1):
            self._processes.ensure(self._worker(name, number, config, image, ports))
        alive = self._await_nodes(name, ports, 1 + config.num_workers, deadline)
        return self._cluster(name, ports, alive)

    def plan(self, name: str, config: ClusterConfig, image: Image) -> tuple[Planned, ...]:
        if self.find(name, config, image):
            return (Planned(call=f"none: Ray cluster {name} runs and is adopted"),)
        nodes = ("head", *(f"worker-{n}" for n in range(1, config.num_workers + 1)))
        return tuple(Planned(call=f"start process ray-{name}-{node}") for node in nodes)

    def stop(self, name: str) -> None:
        for node in self._nodes(name):
            self._processes.remove(node)
        self._file(name).unlink(missing_ok=True)

    def diagnose(self, name: str) -> str:
        """The stacks of all processes of the cluster, node by node."""
        nodes = self._nodes(name)
        mark = {leftovers.MARK: str(self._home.root)}
        parts = [f"#### {node}\n{stacks.dump(mark | {leftovers.NAME: node})}" for node in nodes]
        return "\n\n".join(parts) + "\n"

    def _nodes(self, name: str) -> list[str]:
        """The kept programs of this cluster and of none whose name begins alike."""
        own = re.compile(rf"ray-{re.escape(name)}-(head|worker-\d+)")
        return [s.name for s in self._processes.states() if own.fullmatch(s.name)]

    def _head(self, name: str, config: ClusterConfig, image: Image, ports: _Ports) -> ProcessSpec:
        arguments = (
            *("--head", "--port", str(ports.gcs), "--num-cpus", "0", "--num-gpus", "0"),
            *("--dashboard-host", HOST, "--dashboard-port", str(ports.dashboard)),
            *("--temp-dir", str(self._home.runtime / "ray")),
        )
        return self._raylet(f"ray-{name}-head", 0, config, image, arguments)

    def _worker(
        self, name: str, number: int, config: ClusterConfig, image: Image, ports: _Ports
    ) -> ProcessSpec:
        arguments = (
            *("--address", f"{_address(0)}:{ports.gcs}"),
            *("--num-cpus", str(config.cpus_per_worker)),
            *("--num-gpus", str(config.gpus_per_worker)),
        )
        return self._raylet(f"ray-{name}-worker-{number}", number, config, image, arguments)

    def _raylet(
        self,
        name: str,
        number: int,
        config: ClusterConfig,
        image: Image,
        arguments: tuple[str, ...],
    ) -> ProcessSpec:
        store = str(config.object_store_mb * 2**20)
        return ProcessSpec(
            name=name,
            command=(
                *(image.python, "-m", "ray.scripts.scripts", "start", "--block"),
                *("--node-ip-address", _address(number), "--object-store-memory", store),
                # Its usual port is taken where another home has a cluster on this machine.
                *("--dashboard-agent-listen-port", str(any_free())),
                *("--disable-usage-stats", *arguments),
            ),
            environment={
                "ARIADNE_HOME": str(self._home.root),
                "PYTHONPATH": image.app,
                "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
                "RAY_USAGE_STATS_ENABLED": "0",
                "HF_HUB_OFFLINE": "1",
                "DO_NOT_TRACK": "1",
                "OMP_NUM_THREADS": str(os.cpu_count() or 1),
            },
            directory=Path(image.app),
            log=self._home.logs / f"{name}.log",
            restart=False,
            stop_timeout_s=5,  # it keeps nothing worth a longer farewell
        )

    def _await_nodes(self, name: str, ports: _Ports, wanted: int, deadline: float) -> int:
        while (alive := count_nodes(_url(ports))) < wanted:
            if time.monotonic() > deadline:
                logs = self._home.logs / f"ray-{name}-*.log"
                raise RuntimeError(f"{alive} of {wanted} Ray nodes came up in time; see {logs}")
            time.sleep(0.5)
        return alive

    def _cluster(self, name: str, ports: _Ports, num_nodes: int) -> Cluster:
        return Cluster(
            name=name,
            dashboard_url=_url(ports),
            num_nodes=num_nodes,
        )

    def _file(self, name: str) -> Path:
        return self._home.services / f"cluster-{name}.json"

    def _read_ports(self, name: str) -> _Ports | None:
        file = self._file(name)
        return _Ports.model_validate_json(file.read_text()) if file.is_file() else None


def _url(ports: _Ports) -> str:
    return f"http://{HOST}:{ports.dashboard}"


def _address(number: int) -> str:
    """A loopback address of its own for each node, as on a real network.

    Ray replaces 127.0.0.1 by the machine's outer address, and takes nodes that share an address for
    one machine.
    """
    return f"127.0.0.{2 + number}"


def _made_of(config: ClusterConfig, image: Image) -> str:
    return digest_of([config, image])
