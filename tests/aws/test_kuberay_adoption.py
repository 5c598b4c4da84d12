"""RayClusters that somebody else has made: used after a check or left alone, never deleted."""

from collections.abc import Callable
from typing import Any

import pytest

from configs.loader import ROOT
from configs.schema import ClusterConfig
from tasks.backends.kuberay_adoption import misfits
from tasks.backends.ray_manifest import ray_cluster
from tests.aws.dashboard import Dashboard
from tests.aws.profiles import IMAGE, Setting
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import RAY_CLUSTER
from tests.samples import reason

RBAC = ROOT / "configs" / "kuberay-rbac.yaml"


Object = dict[str, Any]


@pytest.fixture
def server(kuberay_server: KubernetesServer) -> KubernetesServer:
    return kuberay_server


def foreign(config: ClusterConfig, name: str = "studio", **changes: Any) -> Object:
    """What somebody has made in Studio: the same pods, none of our labels."""
    manifest = ray_cluster(name, config, IMAGE)
    manifest["metadata"]["labels"] = {}
    manifest["metadata"]["annotations"] = {}
    manifest["spec"] |= changes
    return manifest


def clusters(server: KubernetesServer) -> list[str]:
    return [item["metadata"]["name"] for item in server.store.items(RAY_CLUSTER)]


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
        {"submission_id": "run-attempt-2", "status": "PENDING", "metadata": ours},
        {"submission_id": "theirs", "status": "RUNNING", "metadata": {}},
        {"submission_id": "theirs-too", "status": "RUNNING", "metadata": None},
    ]
    setting.stop()
    assert dashboard.stopped == ["run-attempt-1", "run-attempt-2"]
    (after,) = server.store.items(RAY_CLUSTER)
    assert after["spec"] == before["spec"] and after["metadata"]["uid"] == before["metadata"]["uid"]
    assert {call.verb for call in server.calls} <= {"get", "list", "watch"}, "it is only read"


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


def test_a_worker_of_several_machines_counts_as_several(
    server: KubernetesServer, make: Callable[..., Setting]
) -> None:
    setting = make(kuberay__adopt="studio")
    manifest = foreign(setting.config)
    manifest["spec"]["workerGroupSpecs"][0] |= {"replicas": 1, "minReplicas": 1, "numOfHosts": 3}
    assert misfits(manifest, setting.config, IMAGE) == []
    manifest["spec"]["workerGroupSpecs"][0]["numOfHosts"] = 2
    (told,) = misfits(manifest, setting.config, IMAGE)
    assert told == "it has 2 workers with at least 2 GPUs, not 3"
