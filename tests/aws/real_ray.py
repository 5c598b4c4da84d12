"""KubeRay with real nodes: every RayCluster of the stand-in becomes a Ray cluster on this machine.

Its "pods" are raylets, processes of their own groups, sized by the manifest. A raylet that dies is
a pod that was lost: the status says so, and another is started in its place, as KubeRay does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from configs.schema import ClusterConfig
from tasks.backends.local_ray import LocalRay
from tasks.backends.protocols import Image
from tasks.backends.ray_manifest import GPU
from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tests.kubernetes_api.operators import Operated, pending
from tests.kubernetes_api.store import POD

Object = dict[str, Any]
_LOOK_S = 0.5


@dataclass(frozen=True)
class RealRay:
    """An operator. What the pods' image holds is taken from `image`, of this machine."""

    home: Home
    """Where the raylets' processes and logs are kept; not that of the control plane."""
    image: Image
    has_machines: Callable[[], bool] = lambda: True
    """A pod whose machine is gone is pending until there is another one."""

    def __call__(self, cluster: Operated) -> None:
        ray = LocalRay(self.home, Supervisord(self.home))
        reference = _container(cluster.cluster["spec"]["headGroupSpec"])["image"]
        assert reference == self.image.reference, "the pods run another image"
        try:
            cluster.add_pods(**pending("ContainerCreating", ""))
            port = _start(ray, cluster, self.image)
            self._run_pods(cluster)
            while True:
                num_ready = self._num_workers_alive(cluster)
                cluster.set_ready(port, num_ready)
                if self._can_mend(cluster, num_ready):
                    self._mend(ray, cluster)
                while self._num_workers_alive(cluster) == num_ready:
                    if self._can_mend(cluster, num_ready):
                        break
                    if cluster.ending.wait(_LOOK_S):
                        return
        finally:
            ray.stop(cluster.name)

    def _can_mend(self, cluster: Operated, num_ready: int) -> bool:
        return num_ready < cluster.num_workers and self.has_machines()

    def _num_workers_alive(self, cluster: Operated) -> int:
        workers = f"ray-{cluster.name}-worker-"
        states = Supervisord(self.home).states()
        return sum(each.running for each in states if each.name.startswith(workers))

    def _mend(self, ray: LocalRay, cluster: Operated) -> None:
        """Start the raylets that are gone, in the cluster that there is."""
        ports = ray._read_ports(cluster.name)
        assert ports is not None
        config = _config(cluster)
        for number in range(1, cluster.num_workers + 1):
            worker = ray._worker(cluster.name, number, config, self.image, ports)
            state = Supervisord(self.home).state(worker.name)
            if state is None or not state.running:
                Supervisord(self.home).ensure(worker)

    def _run_pods(self, cluster: Operated) -> None:
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": None}
        for pod in cluster.store.items(POD, cluster.namespace):
            name = pod["metadata"]["name"]
            cluster.store.patch(POD, cluster.namespace, name, {"status": status}, status=True)


def _start(ray: LocalRay, cluster: Operated, image: Image) -> int:
    """Start until it runs, as pods are on a machine that is busy; the dashboard's port."""
    config = _config(cluster)
    while True:
        try:
            url = ray.start(cluster.name, config, image).dashboard_url
            return int(url.rpartition(":")[2])
        except RuntimeError:
            if cluster.ending.is_set():
                raise


def _config(cluster: Operated) -> ClusterConfig:
    """A Ray cluster of the sizes that the manifest asks for."""
    (workers,) = cluster.cluster["spec"]["workerGroupSpecs"]
    limits = _container(workers)["resources"]["limits"]
    store = int(workers["rayStartParams"]["object-store-memory"])
    return ClusterConfig(
        num_workers=workers["replicas"],
        cpus_per_worker=int(limits["cpu"]),
        gpus_per_worker=int(limits[GPU]),
        object_store_mb=store // 2**20,
        start_timeout_s=150,
    )


def _container(group: Object) -> Object:
    return group["template"]["spec"]["containers"][0]
