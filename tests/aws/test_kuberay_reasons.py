"""Why a RayCluster takes so long, told to whoever waits for it."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from configs.loader import ROOT
from tasks.backends import kuberay
from tests.aws.dashboard import Dashboard
from tests.aws.profiles import IMAGE, Setting
from tests.kubernetes_api.operators import (
    RUNNING,
    Operated,
    condition,
    pending,
    unscheduled,
)
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import NODE, POD, RAY_CLUSTER, WORKLOAD
from tests.samples import reason
from tests.waiting import wait_until

RBAC = ROOT / "configs" / "kuberay-rbac.yaml"


Object = dict[str, Any]


@pytest.fixture
def server(kuberay_server: KubernetesServer) -> KubernetesServer:
    return kuberay_server


def stuck(**status: Any) -> Callable[[Operated], None]:
    """All pods have this status, for good."""

    def operate(cluster: Operated) -> None:
        cluster.add_pods(**status)
        cluster.ending.wait()

    return operate


def told_by(setting: Setting) -> str:
    """What the operator reads when it does not come up in time."""
    hurry = setting.config.model_copy(update={"start_timeout_s": 1})
    told = reason(lambda: setting.backend.start("maze", hurry, IMAGE))
    assert told.startswith("RayCluster maze did not come up in ")
    return told


def node(name: str, instance_type: str, **labels: str) -> Object:
    prefix = "sagemaker.amazonaws.com/"
    named = {prefix + key.replace("_", "-"): value for key, value in labels.items()}
    kind = {"node.kubernetes.io/instance-type": instance_type}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": kind | named}}


def test_no_machine_takes_the_pods_and_hyperpod_says_why(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    for name, health, more in (
        ("n1", "Schedulable", {}),
        ("n2", "Unschedulable", {"deep_health_check_status": "InProgress"}),
        ("n3", "UnschedulablePendingReplacement", {}),
    ):
        labels = {"node_health_status": health, **more}
        server.store.create(NODE, "", node(name, "ml.g7e.12xlarge", **labels))

    def operate(cluster: Operated) -> None:
        workers = cluster.cluster["spec"]["workerGroupSpecs"][0]
        message = "0/4 nodes are available: 3 Insufficient nvidia.com/gpu."
        cluster.add_pod("maze-head", "head", cluster.cluster["spec"]["headGroupSpec"], **RUNNING)
        for number in range(3):
            cluster.add_pod(f"maze-w{number}", "worker", workers, **unscheduled(message))
        cluster.ending.wait()

    server.operators.operator = operate
    told = told_by(make())
    assert (
        "3 pods: no node takes it: 0/4 nodes are available: 3 Insufficient nvidia.com/gpu.; of 3 "
        "nodes ml.g7e.12xlarge, 1 under a deep health check, 1 about to be replaced" in told
    )


def test_a_kind_of_machine_that_is_not_there_is_named(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    server.store.create(NODE, "", node("n1", "ml.m5.large"))
    server.operators.operator = stuck(**unscheduled("0/1 nodes are available"))
    assert "the cluster has no ml.g7e.12xlarge" in told_by(make())


def test_who_may_not_see_machines_learns_the_rest(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    server.rules = [rule for rule in read_rules(RBAC) if rule.namespace]
    server.operators.operator = stuck(**unscheduled("0/1 nodes are available"))
    assert "4 pods: no node takes it: 0/1 nodes are available. Next" in told_by(make())


def test_an_image_that_cannot_be_pulled_is_given_up_before_the_time_is_over(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kuberay, "_PATIENCE_S", 0)
    server.operators.operator = stuck(**pending("ImagePullBackOff", "manifest unknown"))
    told = reason(make(start_timeout_s=3600).start)
    assert "its image cannot be pulled (ImagePullBackOff): manifest unknown" in told


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        ("CrashLoopBackOff", "its container does not start (CrashLoopBackOff): ray: not found"),
        ("CreateContainerConfigError", "its container does not start"),
        ("ContainerCreating", "its image is being pulled"),
    ],
)
def test_a_container_that_waits_says_for_what(
    server: KubernetesServer,
    make: Callable[..., Setting],
    waiting: str,
    said: str,
) -> None:
    server.operators.operator = stuck(**pending(waiting, "ray: not found"))
    assert said in told_by(make())


def test_a_volume_that_does_not_mount_is_an_event(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    def operate(cluster: Operated) -> None:
        for pod in cluster.add_pods(**pending("ContainerCreating", "")):
            cluster.warn(pod, "FailedMount", "rpc error: fs-0123 is not reachable")
            cluster.warn(pod, "Zombie", "an older one", at="2025-01-01T00:00:00Z")
        cluster.ending.wait()

    server.operators.operator = operate
    assert "4 pods: FailedMount: rpc error: fs-0123 is not" in told_by(make())


def test_a_pod_that_was_evicted_says_so(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    server.operators.operator = stuck(phase="Failed", reason="Evicted", message="low on memory")
    assert "4 pods: failed: low on memory" in told_by(make())


def test_kuberay_that_may_make_no_pods_says_so(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    def operate(cluster: Operated) -> None:
        failure = condition(
            "ReplicaFailure", "True", "FailedCreateWorkerPod", "exceeded quota: gpu"
        )
        cluster.set_status(conditions=[failure])
        cluster.ending.wait()

    server.operators.operator = operate
    assert "KubeRay cannot make a pod: exceeded quota: gpu" in told_by(make())


def test_kuberay_that_is_not_there_is_missed(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    server.operators.operator = lambda cluster: cluster.ending.wait()
    assert "KubeRay has made no pods yet: does its operator run?" in told_by(make())


def queued(*conditions: Object) -> Callable[[Operated], None]:
    """Kueue keeps the cluster suspended; its Workload says why."""

    def operate(cluster: Operated) -> None:
        meta = cluster.cluster["metadata"]
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster.name}
        workload = {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {
                "name": "raycluster-maze",
                "ownerReferences": [owner | {"uid": meta["uid"]}],
            },
            "spec": {"queueName": "team"},
        }
        store = cluster.store
        store.patch(RAY_CLUSTER, "ariadne", cluster.name, {"spec": {"suspend": True}})
        if conditions:
            store.create(WORKLOAD, "ariadne", workload)
            told = {"status": {"conditions": list(conditions)}}
            store.patch(WORKLOAD, "ariadne", "raycluster-maze", told, status=True)
        cluster.ending.wait()

    return operate


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        (
            (condition("QuotaReserved", "False", "Pending", "insufficient quota for GPUs"),),
            "waits for quota in queue team: insufficient quota for GPUs",
        ),
        (
            (condition("Evicted", "True", "Preempted", "Preempted by a job of higher priority"),),
            "waits for quota in queue team: Preempted by a job of higher priority",
        ),
        ((), "queue team has not taken it up: is there such a LocalQueue?"),
    ],
)
def test_a_queue_without_room_says_so(
    server: KubernetesServer,
    make: Callable[..., Setting],
    conditions: tuple[Object, ...],
    said: str,
) -> None:
    server.operators.operator = queued(*conditions)
    setting = make(kuberay__queue="team", kuberay__priority="high")
    assert said in told_by(setting)


def test_ray_that_does_not_answer_is_told_from_pods_that_do_not_run(
    dashboard: Dashboard, make: Callable[..., Setting]
) -> None:
    dashboard.num_nodes = 2
    told = told_by(make())
    assert f"not all Ray nodes are known at http://127.0.0.1:{dashboard.port}" in told


def test_each_new_reason_is_a_line_for_whoever_watches(
    server: KubernetesServer,
    dashboard: Dashboard,
    make: Callable[..., Setting],
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = threading.Event()

    def operate(cluster: Operated) -> None:
        pods = cluster.add_pods(**unscheduled("no room"))
        go_on.wait()
        for pod in pods:
            cluster.store.patch(POD, "ariadne", pod, {"status": RUNNING}, status=True)
        cluster.set_ready(dashboard.port)
        cluster.ending.wait()

    server.operators.operator = operate
    caplog.set_level(logging.INFO, logger="tasks.backends.kuberay")
    flow = threading.Thread(target=make().start)
    flow.start()
    line = "cluster: waiting: 4 pods: no node takes it: no room"
    wait_until(lambda: line in caplog.messages and len(server.made("watch", "rayclusters")) > 2)
    go_on.set()
    flow.join(20)
    assert caplog.messages.count(line) == 1


def test_a_cluster_that_is_deleted_while_it_starts_is_gone(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    def operate(cluster: Operated) -> None:
        cluster.store.delete(RAY_CLUSTER, "ariadne", cluster.name, {})

    server.operators.operator = operate
    assert "RayCluster maze is gone: somebody has deleted it" in reason(make().start)
