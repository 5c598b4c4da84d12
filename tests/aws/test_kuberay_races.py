"""What happens between two looks at the API: a cluster that goes, and one that comes, meanwhile."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tasks.backends import kuberay, kubernetes_api
from tasks.backends.protocols import Cluster
from tasks.backends.ray_manifest import ray_cluster
from tests.aws.dashboard import Dashboard
from tests.aws.profiles import IMAGE, Setting
from tests.kubernetes_api.operators import Operated, comes_up, pending
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import POD, RAY_CLUSTER
from tests.samples import reason
from tests.waiting import wait_until

Make = Callable[..., Setting]
Object = dict[str, Any]


def uid(server: KubernetesServer) -> str:
    (only,) = server.store.items(RAY_CLUSTER)
    return only["metadata"]["uid"]


def test_a_cluster_on_its_way_out_is_neither_found_nor_adopted(
    kuberay_server: KubernetesServer, dashboard: Dashboard, make: Make
) -> None:
    """It answers to its end: a job submitted to it would be lost."""
    may_end = threading.Event()

    def lingers(cluster: Operated) -> None:
        comes_up(dashboard.port)(cluster)
        may_end.wait()

    kuberay_server.operators.operator = lingers
    setting = make()
    setting.start()
    before = uid(kuberay_server)
    kuberay_server.operators.operator = comes_up(dashboard.port)
    going = {"propagationPolicy": "Foreground"}
    kuberay_server.store.delete(RAY_CLUSTER, "ariadne", "maze", going)
    assert uid(kuberay_server) == before
    assert setting.find() is None
    got: list[Cluster] = []
    looks = len(kuberay_server.made("watch", "rayclusters"))
    flow = threading.Thread(target=lambda: got.append(setting.start()))
    flow.start()
    wait_until(lambda: got or len(kuberay_server.made("watch", "rayclusters")) > looks)
    assert got == [] and len(kuberay_server.made("create", "rayclusters")) == 1
    may_end.set()
    flow.join(20)
    assert len(got) == 1 and uid(kuberay_server) != before


def test_a_cluster_that_is_deleted_while_its_nodes_come_up_is_not_handed_out(
    kuberay_server: KubernetesServer, dashboard: Dashboard, make: Make
) -> None:
    may_end = threading.Event()

    def is_deleted_at_once(cluster: Operated) -> None:
        cluster.add_pods()
        going = {"propagationPolicy": "Foreground"}
        cluster.store.delete(RAY_CLUSTER, "ariadne", cluster.name, going)
        cluster.set_ready(dashboard.port)
        may_end.wait()

    kuberay_server.operators.operator = is_deleted_at_once
    told: list[str] = []
    setting = make()
    flow = threading.Thread(target=lambda: told.append(reason(setting.start)))
    flow.start()
    wait_until(lambda: told or len(kuberay_server.made("watch", "rayclusters")) > 2)
    assert told == []
    may_end.set()
    flow.join(20)
    assert "somebody has deleted it" in told[0]


def first_to_create(
    server: KubernetesServer, monkeypatch: pytest.MonkeyPatch, manifest: Object
) -> None:
    """Somebody creates this cluster between the backend's first look and its own creation."""
    create, others = kubernetes_api.KubernetesApi.create, [manifest]

    def create_second(self: Any, kind: Any, body: Object) -> bool:
        if kind is kubernetes_api.RAY_CLUSTERS and others:
            server.store.create(RAY_CLUSTER, "ariadne", others.pop())
        return create(self, kind, body)

    monkeypatch.setattr(kubernetes_api.KubernetesApi, "create", create_second)


def test_a_foreign_cluster_that_was_first_is_left_alone(
    kuberay_server: KubernetesServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = make()
    manifest = ray_cluster("maze", setting.config, IMAGE)
    manifest["metadata"] |= {"labels": {}, "annotations": {}}
    first_to_create(kuberay_server, monkeypatch, manifest)
    assert "is somebody else's" in reason(setting.start)
    setting.stop()
    assert kuberay_server.made("delete", "rayclusters") == []
    assert len(kuberay_server.store.items(RAY_CLUSTER)) == 1


def test_a_digest_without_our_label_makes_no_cluster_ours(
    kuberay_server: KubernetesServer, make: Make
) -> None:
    """As of a manifest of ours that somebody has copied."""
    setting = make()
    manifest = ray_cluster("maze", setting.config, IMAGE)
    manifest["metadata"]["labels"] = {}
    kuberay_server.store.create(RAY_CLUSTER, "ariadne", manifest)
    assert setting.find() is None
    assert "is somebody else's" in reason(setting.start)


def test_a_cluster_that_is_replaced_while_it_ends_ends_the_wait_and_not_the_new_one(
    kuberay_server: KubernetesServer, dashboard: Dashboard, make: Make
) -> None:
    may_end = threading.Event()

    def lingers(cluster: Operated) -> None:
        comes_up(dashboard.port)(cluster)
        may_end.wait()

    kuberay_server.operators.operator = lingers
    setting = make()
    setting.start()
    kuberay_server.operators.operator = comes_up(dashboard.port)
    store = kuberay_server.store
    manifest = ray_cluster("maze", setting.config, IMAGE)

    def another_comes() -> None:
        """At once, before anybody has seen the gap."""
        with store.changed:
            may_end.set()
            store.changed.wait_for(lambda: not store.items(RAY_CLUSTER), 20)
            store.create(RAY_CLUSTER, "ariadne", manifest)

    flow = threading.Thread(target=setting.stop)
    flow.start()
    wait_until(lambda: kuberay_server.made("delete", "rayclusters"))
    another_comes()
    flow.join(20)
    assert not flow.is_alive() and uid(kuberay_server)
    assert len(kuberay_server.made("delete", "rayclusters")) == 1


def test_a_pod_of_somebody_else_that_ends_meanwhile_is_not_forced(
    kuberay_server: KubernetesServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a notebook that has joined the cluster, on a machine that died with a worker's."""
    setting = make()
    setting.start()
    store = kuberay_server.store
    pod = store.get(POD, "ariadne", "maze-worker-2")
    guest = {"name": "guest", "labels": {"ray.io/cluster": "maze"}, "namespace": "ariadne"}
    spec = pod["spec"] | {"nodeName": "maze-worker-2-n"}
    store.create(
        POD, "ariadne", {"apiVersion": "v1", "kind": "Pod", "metadata": guest, "spec": spec}
    )
    store.dead_nodes.add("maze-worker-2-n")
    store.delete(POD, "ariadne", "guest", {})
    monkeypatch.setattr(kuberay, "_FAREWELL_S", 1)
    short = setting.backend._kuberay.model_copy(update={"stop_timeout_s": 0})
    monkeypatch.setattr(setting.backend, "_kuberay", short)
    setting.stop()
    assert [call.name for call in kuberay_server.made("delete", "pods")] == ["maze-worker-2"]
    assert [each["metadata"]["name"] for each in store.items(POD)] == ["guest"]


def test_an_image_that_can_be_pulled_after_all_sets_the_clock_of_patience_back(
    kuberay_server: KubernetesServer,
    dashboard: Dashboard,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kuberay, "_PATIENCE_S", 2)
    go_on = threading.Event()

    def operate(cluster: Operated) -> None:
        pods = cluster.add_pods(**pending("ErrImagePull", "the registry is busy"))
        wait_until(looks(kuberay_server, 1))
        for pod in pods:
            waits = {"status": pending("ContainerCreating", "")}
            cluster.store.patch(POD, "ariadne", pod, waits, status=True)
        go_on.wait()
        cluster.set_ready(dashboard.port)
        cluster.ending.wait()

    kuberay_server.operators.operator = operate
    got: list[Cluster] = []
    flow = threading.Thread(target=lambda: got.append(make().start()))
    flow.start()
    wait_until(lambda: looks(kuberay_server, 6)() or not flow.is_alive())
    go_on.set()
    flow.join(20)
    assert len(got) == 1


def looks(server: KubernetesServer, num: int) -> Callable[[], bool]:
    """Whether the backend has looked so often, about a second apart."""
    return lambda: len(server.made("watch", "rayclusters")) >= num


def test_an_adopted_cluster_that_is_silent_has_no_jobs_to_end(
    kuberay_server: KubernetesServer, make: Make
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens on it
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        setting = make(kuberay__adopt="studio", kuberay__dashboard_url=url)
        kuberay_server.store.create(
            RAY_CLUSTER, "ariadne", ray_cluster("studio", setting.config, IMAGE)
        )
        setting.stop()
    assert len(kuberay_server.store.items(RAY_CLUSTER)) == 1
