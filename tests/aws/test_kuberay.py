"""The RayCluster backend against a strict Kubernetes API: made, adopted, released, and no more."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from configs.loader import ROOT
from tasks.backends import kuberay, kubernetes_api
from tasks.backends.kuberay import KubeRay
from tasks.backends.protocols import Cluster, ClusterBackend
from tasks.backends.ray_manifest import SPEC_DIGEST, ray_cluster
from tests.aws.dashboard import Dashboard
from tests.aws.profiles import FSX, IMAGE, Setting, cluster_config
from tests.kubernetes_api.operators import Operated, condition
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import CLAIM, POD, RAY_CLUSTER, VOLUME
from tests.samples import reason
from tests.waiting import wait_until

RBAC = ROOT / "configs" / "kuberay-rbac.yaml"


Object = dict[str, Any]


@pytest.fixture
def server(kuberay_server: KubernetesServer) -> KubernetesServer:
    return kuberay_server


def clusters(server: KubernetesServer) -> list[str]:
    return [item["metadata"]["name"] for item in server.store.items(RAY_CLUSTER)]


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
    settings = [make(), make()]  # one after the other: both write the kubeconfig
    flows = [threading.Thread(target=lambda s=s: got.append(s.start())) for s in settings]
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


@pytest.mark.parametrize(
    "lost",
    [
        {"readyWorkerReplicas": 2},
        {"conditions": [condition("HeadPodReady", "False", "ContainersNotReady")]},
    ],
)
def test_a_cluster_that_lost_a_pod_is_not_found_though_kuberay_calls_it_ready(
    server: KubernetesServer, make: Callable[..., Setting], lost: Object
) -> None:
    setting = make()
    setting.start()
    status = {"status": {"state": "ready", **lost}}
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
    server.store.create(RAY_CLUSTER, "ariadne", ray_cluster("maze", setting.config, IMAGE))
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
