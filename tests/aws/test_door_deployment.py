"""Hosting on Kubernetes: the real door in a pod, in front of stand-ins for vLLM."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs.hosting import ServingPodConfig
from configs.loader import ROOT, load_config
from tasks.backends.door_deployment import DoorDeployment
from tasks.backends.pod_servers import PodServers
from tasks.backends.serving_manifest import services
from tasks.backends.wiring import make_backends
from tasks.home import Home
from tasks.preflight.key import endpoint_key
from tests.aws.conftest import RBAC
from tests.aws.hosting import KEY, POD_CONFIG, SERVING_RBAC, Hosting, kubernetes, pod_runs
from tests.aws.profiles import IMAGE
from tests.kubernetes_api import schemas
from tests.kubernetes_api.deployments import Deployments, IsReady
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import DEPLOYMENT, POD, SERVICE
from tests.samples import reason
from tests.waiting import wait_until

Object = dict[str, Any]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    with kubernetes(monkeypatch) as running:
        yield running


@pytest.fixture
def pods(server: KubernetesServer) -> Iterator[Deployments]:
    running = Deployments(server.store, pod_runs)
    yield running
    running.close()


@pytest.fixture
def hosting(server: KubernetesServer, tmp_path: Path) -> Hosting:
    return Hosting(server, tmp_path)


def test_an_adapter_is_served_found_and_followed_by_another_without_a_new_pod(
    hosting: Hosting, pods: Deployments
) -> None:
    first, second = hosting.model("a"), hosting.model("b", previous=hosting.adapter("a"))
    assert hosting.backend.find(first) is None
    endpoint = hosting.backend.serve(first)
    assert endpoint.models == {"base": "0" * 64, "maze-solver": "a" * 64}
    assert hosting.backend.find(first) == endpoint and hosting.serves("a")
    assert hosting.backend.find(second) is None
    hosting.backend.serve(second)
    assert hosting.serves("b") and hosting.backend.find(first) is None
    assert pods.num_pods == 1
    without_key = httpx.get(endpoint.url + "/models", timeout=10)
    assert without_key.status_code == 401


def test_a_server_that_plays_as_the_base_is_refuted_before_anybody_asks(
    hosting: Hosting, pods: Deployments
) -> None:
    pods.run = lambda template: pod_runs(template, plays_as_base=True)
    told = reason(lambda: hosting.backend.serve(hosting.model()))
    assert "plays maze 7 as the base does: its adapter is not in effect" in told


def test_an_adapter_that_does_not_load_leaves_the_one_before_in_service(
    hosting: Hosting, pods: Deployments
) -> None:
    hosting.backend.serve(hosting.model("a"))
    gone = hosting.model("b")
    (gone.champion.folder / "adapter_config.json").unlink()
    assert "does not load" in reason(lambda: hosting.backend.serve(gone))
    assert hosting.wish().champion.digest == "a" * 64 and hosting.serves("a")
    wait_until(lambda: hosting.backend.find(hosting.model("a")))


def test_a_new_image_that_does_not_come_up_leaves_the_pod_before_in_service(
    hosting: Hosting, pods: Deployments, server: KubernetesServer, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    first = hosting.model("a")
    hosting.backend.serve(first)

    @contextmanager
    def never_ready(template: Object) -> Iterator[IsReady]:
        yield lambda: False

    pods.run = never_ready
    newer = IMAGE.model_copy(update={"reference": IMAGE.reference.replace("a" * 64, "b" * 64)})
    told = reason(lambda: hosting.backend.serve(hosting.model(image=newer, timeout_s=10)))
    assert "the model server does not serve (a pod: it is not ready yet); see the pods" in told
    assert "host: waiting: a pod: it is not ready yet" in caplog.text
    (found,) = server.store.items(DEPLOYMENT)
    door = found["spec"]["template"]["spec"]["containers"][0]
    assert door["image"] == IMAGE.reference and hosting.serves("a")


def test_a_pod_that_no_machine_takes_is_told(
    hosting: Hosting, server: KubernetesServer, monkeypatch: Any
) -> None:
    told = reason(lambda: hosting.backend.serve(hosting.model(timeout_s=10)))
    assert "Kubernetes has made no pod yet; no door" in told
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    status = {"status": {"conditions": [failed]}}
    server.store.patch(DEPLOYMENT, "ariadne", "maze-solver", status, status=True)
    assert "exceeded quota: gpus" in reason(
        lambda: hosting.backend.serve(hosting.model(timeout_s=10))
    )


def test_somebody_elses_deployment_stops_before_anything_is_asked_for(
    hosting: Hosting, server: KubernetesServer
) -> None:
    other = hosting.deployment(hosting.model())
    other["metadata"] = {"name": "maze-solver", "namespace": "ariadne"}
    server.store.create(DEPLOYMENT, "ariadne", other)
    told = reason(lambda: hosting.backend.serve(hosting.model()))
    assert "Deployment maze-solver in namespace ariadne is somebody else's" in told
    assert not (hosting.home.hosting / "serving.json").exists()
    assert server.store.items(SERVICE) == []


def test_a_missing_key_is_noticed_before_training_costs_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    there = endpoint_key(load_config("hyperpod"))
    monkeypatch.delenv("VLLM_API_KEY")
    missing = endpoint_key(load_config("hyperpod"))
    assert there and there.ok and missing and not missing.ok
    assert missing.fix == "set VLLM_API_KEY to the key of the Secret maze-solver-key"
    assert endpoint_key(load_config("smoke")) is None


def test_a_service_of_another_port_is_not_talked_past(
    hosting: Hosting, server: KubernetesServer
) -> None:
    for manifest in services(hosting.pod, hosting.kuberay, 9000):
        server.store.create(SERVICE, "ariadne", manifest)
    told = reason(lambda: hosting.backend.serve(hosting.model()))
    assert "Service maze-solver in namespace ariadne is there with another port" in told


def test_the_rights_in_the_file_are_all_used_and_with_kuberays_all_that_are(
    hosting: Hosting, pods: Deployments, server: KubernetesServer
) -> None:
    hosting.backend.serve(hosting.model("a"))
    newer = IMAGE.model_copy(update={"reference": IMAGE.reference.replace("a" * 64, "b" * 64)})
    server.store.on_change.clear()  # nobody works on it any more
    assert reason(lambda: hosting.backend.serve(hosting.model(image=newer, timeout_s=10)))
    own = {right for rule in read_rules(SERVING_RBAC) for right in rule.rights()}
    shared = {right for rule in read_rules(RBAC) for right in rule.rights()}
    assert own <= server.rights_used() <= own | shared


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("extra", [{}, {"pod_priority": "high", "queue": "team"}])
def test_every_manifest_is_valid_under_the_strict_schema(
    hosting: Hosting, device: str, extra: Object
) -> None:
    pod = ServingPodConfig.model_validate(POD_CONFIG | extra)
    hosting.pod, hosting.servers = pod, PodServers(pod, hosting.kuberay)
    made = hosting.deployment(hosting.model(device=device))
    schemas.check("Deployment", "apps", "v1", made)
    for each in services(pod, hosting.kuberay, 8100):
        schemas.check("Service", "", "v1", each)
    made["spec"]["template"]["spec"]["containers"][0]["no-such-field"] = 1
    with pytest.raises(schemas.statuses.Refusal, match="no-such-field"):
        schemas.check("Deployment", "apps", "v1", made)


def test_the_pod_has_a_gpu_for_each_server_reads_the_volume_only_and_hides_the_key(
    hosting: Hosting,
) -> None:
    made = hosting.deployment(hosting.model())
    spec = made["spec"]["template"]["spec"]
    door, *servers = spec["containers"]
    assert [each["resources"]["limits"]["nvidia.com/gpu"] for each in servers] == ["1", "1"]
    assert "nvidia.com/gpu" not in door["resources"]["limits"]
    assert [each["containerPort"] for each in door["ports"]] == [hosting.model().port]
    assert not any("ports" in each for each in servers), "the servers are the door's alone"
    for each in (door, *servers):
        shared = next(m for m in each["volumeMounts"] if m["mountPath"] == "/shared")
        assert shared["readOnly"] is True
        (key,) = [v for v in each["env"] if v["name"] == "VLLM_API_KEY"]
        assert key["valueFrom"]["secretKeyRef"] == {"name": "endpoint-key", "key": "key"}
    assert KEY not in str(made)


def test_an_image_that_is_not_pinned_is_refused(hosting: Hosting, server: KubernetesServer) -> None:
    image = IMAGE.model_copy(update={"reference": "trainer:latest"})
    told = reason(lambda: hosting.backend.serve(hosting.model(image=image)))
    assert "its digest there" in told and server.store.items(POD) == []


def test_the_users_address_leads_to_proven_pods_only(hosting: Hosting) -> None:
    users, unproven = services(hosting.pod, hosting.kuberay, 8100)
    assert "publishNotReadyAddresses" not in users["spec"]
    assert unproven["spec"]["publishNotReadyAddresses"] is True
    assert unproven["metadata"]["name"] == "maze-solver-unproven"


def test_a_door_without_a_key_does_not_open_to_other_machines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "containers.server.door", "--open", "--port", "1"]
    given = {key: value for key, value in os.environ.items() if key != "VLLM_API_KEY"}
    done = subprocess.run(
        [*command, "--serving", str(tmp_path / "serving.json")],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 2 and "needs VLLM_API_KEY" in done.stderr


HOSTED = {"host.backend": "vllm_deployment", "host.pod": POD_CONFIG}


@pytest.mark.parametrize(
    ("profile", "given", "said"),
    [
        ("hyperpod", {"host.backend": "vllm_server"}, "belong together"),
        ("smoke", HOSTED, "needs the section cluster.kuberay"),
        ("hyperpod", HOSTED | {"host.port": 0}, "host.port of a pod is from 1024 on"),
        ("hyperpod", HOSTED | {"host.pod": POD_CONFIG | {"service": "A"}}, "host.pod.service"),
        ("hyperpod", HOSTED | {"host.pod": POD_CONFIG | {"url": "ftp://a"}}, "host.pod.url"),
    ],
)
def test_what_makes_no_sense_is_refused(profile: str, given: Object, said: str) -> None:
    assert said in reason(lambda: load_config(profile, given))


def test_the_profile_picks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody asks it
    made = make_backends(load_config("hyperpod"), Home(tmp_path))
    assert isinstance(made.models, DoorDeployment)
