"""The RayCluster backend against a strict Kubernetes API: made, adopted, waited for, released."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.loader import ROOT
from configs.schema import ClusterConfig
from tasks.backends import kuberay, kubernetes_api
from tasks.backends.kuberay import KubeRay
from tasks.backends.protocols import Cluster, ClusterBackend, Image
from tasks.backends.ray_manifest import SPEC_DIGEST, ray_cluster
from tests.aws.dashboard import Dashboard
from tests.aws.profiles import FSX, IMAGE, cluster_config
from tests.kubernetes_api.operators import (
    RUNNING,
    Operated,
    comes_up,
    condition,
    pending,
    unscheduled,
)
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import CLAIM, NODE, POD, RAY_CLUSTER, VOLUME, WORKLOAD
from tests.samples import reason
from tests.waiting import wait_until

RBAC = ROOT / "configs" / "kuberay-rbac.yaml"
Object = dict[str, Any]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at every few seconds is looked at at once."""
    monkeypatch.setattr(kuberay, "_LOOK_S", 1)
    monkeypatch.setattr(kubernetes_api, "_RETRY_FOR_S", 5)
    monkeypatch.setattr("tasks.backends.ray_nodes.count_surely.retry.wait", lambda state: 0)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with Dashboard(num_nodes=4) as running:
        yield running


@pytest.fixture
def server(dashboard: Dashboard) -> Iterator[KubernetesServer]:
    """KubeRay on machines that have room at once, with the rights that the file gives."""
    with KubernetesServer(comes_up(dashboard.port)) as running:
        running.rules = read_rules(RBAC)
        running.store.create(CLAIM, "ariadne", claim())
        yield running


class Setting:
    """A profile and its backend on one server."""

    def __init__(self, server: KubernetesServer, folder: Path, **changes: Any) -> None:
        api = {key: str(value) for key, value in server.access(folder).items()}
        url = {"kuberay__dashboard_url": "http://127.0.0.1:{port}"}
        self.config = cluster_config(**({"kuberay__api": api, **url} | changes))
        self.backend = KubeRay(self.config)

    def find(self, image: Image = IMAGE) -> Cluster | None:
        return self.backend.find("maze", self.config, image)

    def start(self, image: Image = IMAGE) -> Cluster:
        return self.backend.start("maze", self.config, image)

    def stop(self) -> None:
        self.backend.stop("maze")


@pytest.fixture
def make(server: KubernetesServer, tmp_path: Path) -> Callable[..., Setting]:
    return lambda **changes: Setting(server, tmp_path, **changes)


def claim() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "fsx-claim", "namespace": "ariadne"},
        "spec": {"accessModes": ["ReadWriteMany"]},
    }


def foreign(config: ClusterConfig, name: str = "studio", **changes: Any) -> Object:
    """What somebody has made in Studio: the same pods, none of our labels."""
    manifest = ray_cluster(name, config, IMAGE)
    manifest["metadata"]["labels"] = {}
    manifest["metadata"]["annotations"] = {}
    manifest["spec"] |= changes
    return manifest


def clusters(server: KubernetesServer) -> list[str]:
    return [item["metadata"]["name"] for item in server.store.items(RAY_CLUSTER)]


# ---- made, found, released


def test_a_cluster_is_made_found_and_released(
    server: KubernetesServer, dashboard: Dashboard, make: Callable[..., Setting]
) -> None:
    setting = make()
    assert setting.find() is None
    made = setting.start()
    url = f"http://127.0.0.1:{dashboard.port}"
    assert made == Cluster(name="maze", dashboard_url=url, num_nodes=4)
    assert setting.find() == made
    setting.stop()
    assert clusters(server) == [] and server.store.items(POD) == []
    assert setting.find() is None
    setting.stop()  # nothing there is nothing to do


def test_it_is_a_cluster_backend(make: Callable[..., Setting]) -> None:
    backend: ClusterBackend = make().backend
    assert backend.find("maze", make().config, IMAGE) is None


def test_inside_of_kubernetes_jobs_go_to_the_heads_service(make: Callable[..., Setting]) -> None:
    config = cluster_config()
    assert config.kuberay is not None
    known: Object = {"metadata": {"name": "maze"}, "status": {}}
    assert KubeRay(config)._url(known) == "http://maze-head-svc.ariadne.svc:8265"
    known["status"] = {"head": {"serviceName": "other"}, "endpoints": {"dashboard": "80"}}
    assert KubeRay(config)._url(known) == "http://other.ariadne.svc:80"


def test_the_same_profile_adopts_what_runs(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    first = make().start()
    assert make().start() == first
    assert len(server.made("create", "rayclusters")) == 1


def test_another_profile_replaces_it(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    make().start()
    (before,) = server.store.items(RAY_CLUSTER)
    other = make(kuberay__service_account="another")
    assert other.find() is None
    other.start()
    (after,) = server.store.items(RAY_CLUSTER)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    digests = [each["metadata"]["annotations"][SPEC_DIGEST] for each in (before, after)]
    assert digests[0] != digests[1]


def test_another_image_replaces_it(server: KubernetesServer, make: Callable[..., Setting]) -> None:
    make().start()
    newer = IMAGE.model_copy(update={"reference": IMAGE.reference.replace("a" * 64, "b" * 64)})
    assert make().find(newer) is None
    make().start(newer)
    (found,) = server.store.items(RAY_CLUSTER)
    pod = found["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert pod["image"] == newer.reference


def test_two_flows_that_start_at_once_make_one_cluster(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see that there is none; the second to create adopts the first one's."""
    both = threading.Barrier(2)
    create = kubernetes_api.KubernetesApi.create

    def create_together(self: Any, kind: Any, body: Object) -> bool:
        if kind is kubernetes_api.RAY_CLUSTERS:
            both.wait(20)
        return create(self, kind, body)

    monkeypatch.setattr(kubernetes_api.KubernetesApi, "create", create_together)
    got: list[Cluster] = []
    flows = [threading.Thread(target=lambda: got.append(make().start())) for _ in range(2)]
    for flow in flows:
        flow.start()
    for flow in flows:
        flow.join(30)
    assert len(got) == 2 and got[0] == got[1] and clusters(server) == ["maze"]


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_a_cluster_of_which_nodes_are_silent_is_not_found(
    dashboard: Dashboard, make: Callable[..., Setting], num_nodes: int
) -> None:
    setting = make()
    setting.start()
    dashboard.num_nodes = num_nodes
    assert setting.find() is None


def test_a_cluster_that_lost_a_pod_is_not_found_though_kuberay_calls_it_ready(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    setting = make()
    setting.start()
    status = {"status": {"state": "ready", "readyWorkerReplicas": 2}}
    server.store.patch(RAY_CLUSTER, "ariadne", "maze", status, status=True)
    assert setting.find() is None


def test_a_cluster_that_mends_itself_is_waited_for_and_not_made_anew(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    setting = make()
    made = setting.start()
    lost = {"status": {"readyWorkerReplicas": 2}}
    server.store.patch(RAY_CLUSTER, "ariadne", "maze", lost, status=True)
    got: list[Cluster] = []
    flow = threading.Thread(target=lambda: got.append(setting.start()))
    flow.start()
    wait_until(lambda: server.made("watch", "rayclusters"))
    assert got == []
    back = {"status": {"readyWorkerReplicas": 3}}
    server.store.patch(RAY_CLUSTER, "ariadne", "maze", back, status=True)
    flow.join(20)
    assert got == [made] and len(server.made("create", "rayclusters")) == 1


def test_a_status_of_an_older_spec_counts_for_nothing(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    setting = make()
    setting.start()
    server.store.patch(RAY_CLUSTER, "ariadne", "maze", {"spec": {"suspend": False}})
    assert setting.find() is None


# ---- what is not ours


def test_a_cluster_of_somebody_else_is_neither_used_nor_deleted(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    setting = make()
    server.store.create(RAY_CLUSTER, "ariadne", foreign(setting.config, "maze"))
    assert setting.find() is None
    told = reason(setting.start)
    assert "RayCluster maze in namespace ariadne is somebody else's" in told
    assert "cluster.kuberay.adopt" in told
    setting.stop()
    assert clusters(server) == ["maze"] and server.made("delete", "rayclusters") == []


def test_a_cluster_made_in_studio_is_adopted_and_stays(
    server: KubernetesServer, dashboard: Dashboard, make: Callable[..., Setting]
) -> None:
    setting = make(kuberay__adopt="studio")
    before = server.store.create(RAY_CLUSTER, "ariadne", foreign(setting.config))
    adopted = setting.start()
    assert adopted.name == "studio" and adopted.num_nodes == 4
    assert setting.find() == adopted
    ours = {"submitted_by": "ariadne"}
    dashboard.jobs = [
        {"submission_id": "run-attempt-1", "status": "RUNNING", "metadata": ours},
        {"submission_id": "run-attempt-0", "status": "FAILED", "metadata": ours},
        {"submission_id": "theirs", "status": "RUNNING", "metadata": {}},
        {"submission_id": "theirs-too", "status": "RUNNING", "metadata": None},
    ]
    setting.stop()
    assert dashboard.stopped == ["run-attempt-1"]
    (after,) = server.store.items(RAY_CLUSTER)
    assert after["spec"] == before["spec"] and after["metadata"]["uid"] == before["metadata"]["uid"]
    assert {call.verb for call in server.calls} == {"get", "list"}


def test_a_job_that_does_not_end_on_an_adopted_cluster_is_named(
    server: KubernetesServer,
    dashboard: Dashboard,
    make: Callable[..., Setting],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = make(kuberay__adopt="studio")
    server.store.create(RAY_CLUSTER, "ariadne", foreign(setting.config))
    setting.start()
    job = {"submission_id": "run-1", "status": "RUNNING"}
    dashboard.jobs = [job | {"metadata": {"submitted_by": "ariadne"}}]
    monkeypatch.setattr(dashboard, "stop", lambda submission_id: None)
    monkeypatch.setattr("tasks.backends.ray_jobs._STOP_TIMEOUT_S", 0)
    monkeypatch.setattr("tasks.backends.ray_jobs._STOP_POLL_S", 0)
    assert "Ray does not end its jobs run-1" in reason(setting.stop)


def without_volume(manifest: Object) -> None:
    manifest["spec"]["workerGroupSpecs"][0]["template"]["spec"]["volumes"] = []


def elsewhere(manifest: Object) -> None:
    head = manifest["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    head["volumeMounts"][0]["mountPath"] = "/elsewhere"


def other_image(manifest: Object) -> None:
    head = manifest["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    head["image"] = "studio/default:1"


def fewer_gpus(manifest: Object) -> None:
    worker = manifest["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    worker["resources"] = {"limits": {"nvidia.com/gpu": "1"}}


def fewer_workers(manifest: Object) -> None:
    manifest["spec"]["workerGroupSpecs"][0]["replicas"] = 2


def older_ray(manifest: Object) -> None:
    manifest["spec"]["rayVersion"] = "2.40.0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (older_ray, "its Ray is 2.40.0, not 2.57.0"),
        (other_image, "its image is 123456789012.dkr.ecr.us-east-1.amazonaws.com/"),
        (fewer_gpus, "it has 0 workers with at least 2 GPUs, not 3"),
        (fewer_workers, "it has 2 workers with at least 2 GPUs, not 3"),
        (without_volume, "not all its pods have the claim fsx-claim at /shared"),
        (elsewhere, "not all its pods have the claim fsx-claim at /shared"),
    ],
)
def test_a_studio_cluster_that_does_not_fit_is_refused(
    server: KubernetesServer,
    make: Callable[..., Setting],
    change: Callable[[Object], None],
    said: str,
) -> None:
    setting = make(kuberay__adopt="studio")
    manifest = foreign(setting.config)
    change(manifest)
    server.store.create(RAY_CLUSTER, "ariadne", manifest)
    for action in (setting.start, setting.find):
        told = reason(action)
        assert told.startswith("RayCluster studio cannot be adopted: ") and said in told
    assert clusters(server) == ["studio"]


def test_a_studio_cluster_that_is_not_there_is_asked_for(make: Callable[..., Setting]) -> None:
    setting = make(kuberay__adopt="studio")
    assert setting.find() is None
    assert "namespace ariadne has no RayCluster studio: make it" in reason(setting.start)


# ---- the volume


def test_the_claim_is_made_of_the_file_system_and_stays(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    volume = {"claim": "lustre", "mount_path": "/shared", **FSX}
    setting = make(kuberay__volume=volume)
    setting.start()
    setting.stop()
    (kept,) = server.store.items(VOLUME)
    assert kept["spec"]["csi"]["volumeHandle"] == FSX["file_system_id"]
    assert {item["metadata"]["name"] for item in server.store.items(CLAIM)} == {
        "fsx-claim",
        "lustre",
    }
    setting.start()
    assert len(server.made("create", "persistentvolumes")) == 1


def test_a_missing_claim_is_asked_for(make: Callable[..., Setting]) -> None:
    volume = {"claim": "lustre", "mount_path": "/shared"}
    told = reason(make(kuberay__volume=volume).start)
    assert "namespace ariadne has no PersistentVolumeClaim lustre" in told


def test_a_volume_of_another_file_system_is_not_taken(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    other = {"claim": "lustre", "mount_path": "/shared", **FSX, "file_system_id": "fs-99999999"}
    make(kuberay__volume=other).start()
    server.store.delete(CLAIM, "ariadne", "lustre", {})
    told = reason(make(kuberay__volume=other | FSX, kuberay__service_account="a").start)
    assert "PersistentVolume ariadne-lustre is of fs-99999999" in told


# ---- why it takes so long


def stuck(**status: Any) -> Callable[[Operated], None]:
    """All pods have this status, for good."""

    def operate(cluster: Operated) -> None:
        cluster.add_pods(**status)
        cluster.ending.wait()

    return operate


def told_by(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> str:
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
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
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
    told = told_by(make(), monkeypatch)
    assert (
        "3 pods: no node takes it: 0/4 nodes are available: 3 Insufficient nvidia.com/gpu.; of 3 "
        "nodes ml.g7e.12xlarge, 1 under a deep health check, 1 about to be replaced" in told
    )


def test_a_kind_of_machine_that_is_not_there_is_named(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.store.create(NODE, "", node("n1", "ml.m5.large"))
    server.operators.operator = stuck(**unscheduled("0/1 nodes are available"))
    assert "the cluster has no ml.g7e.12xlarge" in told_by(make(), monkeypatch)


def test_who_may_not_see_machines_learns_the_rest(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rules = [rule for rule in read_rules(RBAC) if rule.namespace]
    server.operators.operator = stuck(**unscheduled("0/1 nodes are available"))
    assert "4 pods: no node takes it: 0/1 nodes are available. Next" in told_by(make(), monkeypatch)


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
    monkeypatch: pytest.MonkeyPatch,
    waiting: str,
    said: str,
) -> None:
    server.operators.operator = stuck(**pending(waiting, "ray: not found"))
    assert said in told_by(make(), monkeypatch)


def test_a_volume_that_does_not_mount_is_an_event(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    def operate(cluster: Operated) -> None:
        for pod in cluster.add_pods(**pending("ContainerCreating", "")):
            cluster.warn(pod, "FailedMount", "rpc error: fs-0123 is not reachable")
        cluster.ending.wait()

    server.operators.operator = operate
    assert "4 pods: FailedMount: rpc error: fs-0123 is not" in told_by(make(), monkeypatch)


def test_a_pod_that_was_evicted_says_so(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.operators.operator = stuck(phase="Failed", reason="Evicted", message="low on memory")
    assert "4 pods: failed: low on memory" in told_by(make(), monkeypatch)


def test_kuberay_that_may_make_no_pods_says_so(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    def operate(cluster: Operated) -> None:
        failure = condition(
            "ReplicaFailure", "True", "FailedCreateWorkerPod", "exceeded quota: gpu"
        )
        cluster.set_status(conditions=[failure])
        cluster.ending.wait()

    server.operators.operator = operate
    assert "KubeRay cannot make a pod: exceeded quota: gpu" in told_by(make(), monkeypatch)


def test_kuberay_that_is_not_there_is_missed(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.operators.operator = lambda cluster: cluster.ending.wait()
    assert "KubeRay has made no pods yet: does its operator run?" in told_by(make(), monkeypatch)


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
    monkeypatch: pytest.MonkeyPatch,
    conditions: tuple[Object, ...],
    said: str,
) -> None:
    server.operators.operator = queued(*conditions)
    setting = make(kuberay__queue="team", kuberay__priority="high")
    assert said in told_by(setting, monkeypatch)


def test_ray_that_does_not_answer_is_told_from_pods_that_do_not_run(
    dashboard: Dashboard, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard.num_nodes = 2
    told = told_by(make(), monkeypatch)
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


# ---- the end


def test_a_pod_on_a_dead_machine_is_forced_to_go(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = make()
    setting.start()
    server.store.dead_nodes.add("maze-worker-2-n")
    monkeypatch.setattr(kuberay, "_FAREWELL_S", 1)
    monkeypatch.setattr(setting.backend, "_kuberay", _with_stop_timeout(setting, 0))
    setting.stop()
    assert clusters(server) == [] and server.store.items(POD) == []
    (forced,) = server.made("delete", "pods")
    assert forced.name == "maze-worker-2"


def test_a_cluster_that_does_not_end_names_what_keeps_it(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def operate(cluster: Operated) -> None:
        cluster.add_pods()
        may_end.wait()

    server.operators.operator = operate
    setting = make()
    told_by(setting, monkeypatch)
    monkeypatch.setattr(kuberay, "_FAREWELL_S", 0)
    monkeypatch.setattr(setting.backend, "_kuberay", _with_stop_timeout(setting, 0))
    assert "RayCluster maze does not end" in reason(setting.stop)
    may_end.set()


def _with_stop_timeout(setting: Setting, seconds: int) -> Any:
    assert setting.config.kuberay is not None
    return setting.config.kuberay.model_copy(update={"stop_timeout_s": seconds})


def test_a_diagnosis_has_the_pods_their_last_lines_and_the_events(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    setting = make()
    setting.start()
    server.store.logs["maze-head-0", "ray-head"] = "".join(f"line {n}\n" for n in range(200))
    text = setting.backend.diagnose("maze")
    assert "#### maze-head-0 on maze-head-0-n (Running)" in text
    assert "line 199" in text and "line 99\n" not in text
    assert 'container "ray-worker" in pod "maze-worker-1" is waiting to start' in text


def test_a_diagnosis_of_what_is_gone_says_so(make: Callable[..., Setting]) -> None:
    text = make().backend.diagnose("maze")
    assert text.startswith("nothing is known of RayCluster maze: RayCluster maze is gone")


def test_an_operator_may_start_real_processes_and_is_waited_for(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    """As one that starts Ray itself would: the cluster ends when its processes have ended."""
    started: list[subprocess.Popen[str]] = []

    def operate(cluster: Operated) -> None:
        command = [sys.executable, "-m", "tests.aws.dashboard", str(1 + cluster.num_workers)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            started.append(process)
            assert process.stdout is not None
            port = int(process.stdout.readline())
            cluster.add_pods()
            cluster.set_ready(port)
            cluster.ending.wait()
            process.terminate()

    server.operators.operator = operate
    setting = make()
    made = setting.start()
    (process,) = started
    assert made.num_nodes == 4 and process.poll() is None
    setting.stop()
    assert process.poll() is not None and clusters(server) == []


# ---- rights


def test_the_rights_in_the_file_are_all_that_are_used_and_all_are_used(
    server: KubernetesServer, make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every path of the backend, under exactly the rights of the file: a missing one is a 403."""
    volume = {"claim": "lustre", "mount_path": "/shared", **FSX}
    setting = make(kuberay__volume=volume, kuberay__queue="team")
    setting.start()
    setting.find()
    setting.backend.diagnose("maze")
    server.store.delete(CLAIM, "ariadne", "lustre", {})
    setting.start()
    server.store.dead_nodes.add("maze-worker-2-n")
    monkeypatch.setattr(kuberay, "_FAREWELL_S", 1)
    monkeypatch.setattr(setting.backend, "_kuberay", _with_stop_timeout(setting, 0))
    setting.stop()
    assert server.rules is not None
    assert {right for rule in server.rules for right in rule.rights()} == server.rights_used()


@pytest.mark.parametrize("resource", ["rayclusters", "pods", "persistentvolumeclaims"])
def test_a_right_that_is_missing_is_named(
    server: KubernetesServer, make: Callable[..., Setting], resource: str
) -> None:
    server.rules = [rule for rule in read_rules(RBAC) if resource not in rule.resources]
    told = reason(make().start)
    assert f'resource "{resource}"' in told and "configs/kuberay-rbac.yaml" in told
