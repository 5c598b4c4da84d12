"""Hosting with Ray Serve: the real door, in front of stand-ins for KubeRay and Ray Serve LLM."""

import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from configs.hosting import RayServeConfig
from configs.loader import ROOT, load_config
from configs.serving import RayApp, ServedAdapter
from tasks import publication
from tasks.adapters import read_intact
from tasks.backends import ray_service
from tasks.backends.object_store import FileStore
from tasks.backends.ray_service import RayServices
from tasks.backends.ray_service_manifest import ray_service as manifest_of
from tasks.backends.wiring import make_backends
from tasks.home import Home
from tests.aws.conftest import RBAC
from tests.aws.hosting import POD_CONFIG, SERVING_RBAC, Hosting, kubernetes, pod_runs
from tests.aws.ray_services import RayServiceController
from tests.aws.stand_in_ray import StandInRay
from tests.kubernetes_api import schemas
from tests.kubernetes_api.deployments import Deployments
from tests.kubernetes_api.rbac import read_rules
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import DEPLOYMENT, RAY_SERVICE
from tests.samples import make_context, reason, write_adapter
from tests.waiting import wait_until

RAY_RBAC = ROOT / "configs" / "ray-service-rbac.yaml"
HEAD = {"instance_type": "ml.m5.2xlarge", "cpus": 4, "memory_gb": 16, "shared_memory_gb": 4}
RAY_CONFIG = {"image": f"registry/ariadne/server@sha256:{'c' * 64}", "head": HEAD}
ADAPTERS = "s3://mazes/home/adapters"
Object = dict[str, Any]


class RayHosting(Hosting):
    """Hosting with Ray Serve, of adapters that are real folders of a run."""

    def __init__(self, server: KubernetesServer, folder: Path, ray: StandInRay) -> None:
        self.store = FileStore(folder / "store")
        self.config = RayServeConfig.model_validate(RAY_CONFIG | ray.urls)
        publish = partial(publication.publish, self.store)
        self.run = make_context(folder / "run-home")
        super().__init__(
            server,
            folder,
            lambda pod, kuberay: RayServices(pod, self.config, kuberay, ADAPTERS, publish),
        )

    def adapter(self, letter: str) -> ServedAdapter:
        step = ord(letter) - ord("a") + 1
        folder = self.run.run.adapter_folder(step)
        if not (folder / "manifest.json").is_file():
            write_adapter(self.run, step)
        manifest = read_intact(folder)
        assert manifest
        return ServedAdapter(digest=manifest.digest, folder=folder)

    def with_image(self, letter: str) -> None:
        """From now on with another image of Ray Serve."""
        image = RAY_CONFIG["image"].replace("c" * 64, letter * 64)  # type: ignore[attr-defined]
        self.config = self.config.model_copy(update={"image": image})
        self.servers = RayServices(
            self.pod, self.config, self.kuberay, ADAPTERS,
            partial(publication.publish, self.store),
        )  # fmt: skip
        self.backend._servers = self.servers


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesServer]:
    monkeypatch.setattr(ray_service, "_LOOK_S", 0.05)
    with kubernetes(monkeypatch, RAY_RBAC) as running:
        yield running


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[StandInRay]:
    with StandInRay(FileStore(tmp_path / "store")) as running:
        yield running


@pytest.fixture
def pods(server: KubernetesServer) -> Iterator[Deployments]:
    running = Deployments(server.store, pod_runs)
    yield running
    running.close()


@pytest.fixture
def services(
    server: KubernetesServer, ray: StandInRay, pods: Deployments
) -> Iterator[RayServiceController]:
    running = RayServiceController(server.store, ray.runs)
    yield running
    running.close()


@pytest.fixture
def hosting(server: KubernetesServer, tmp_path: Path, ray: StandInRay) -> RayHosting:
    return RayHosting(server, tmp_path, ray)


def names(server: KubernetesServer) -> list[str]:
    return [item["metadata"]["name"] for item in server.store.items(RAY_SERVICE)]


def test_an_adapter_is_published_served_and_followed_by_another_without_a_new_ray_service(
    hosting: RayHosting, services: RayServiceController, pods: Deployments
) -> None:
    first, second = hosting.model("a"), hosting.model("b", previous=hosting.adapter("a"))
    assert hosting.backend.find(first) is None
    endpoint = hosting.backend.serve(first)
    assert endpoint.models["maze-solver"] == first.champion.digest
    assert hosting.backend.find(first) == endpoint
    assert hosting.serves("a")
    hosting.backend.serve(second)
    assert hosting.serves("b")
    assert set(publication.published(hosting.store)) == {
        first.champion.digest, second.champion.digest
    }  # fmt: skip
    assert len(services.made) == 1 and pods.num_pods == 1


def test_a_server_that_plays_as_the_base_is_refuted_before_anybody_asks(
    hosting: RayHosting, services: RayServiceController, ray: StandInRay
) -> None:
    ray.plays_as_base = True
    told = reason(lambda: hosting.backend.serve(hosting.model()))
    assert "plays maze 7 as the base does: its adapter is not in effect" in told


def test_an_adapter_that_the_store_has_lost_leaves_the_one_before_in_service(
    hosting: RayHosting, services: RayServiceController, ray: StandInRay
) -> None:
    hosting.backend.serve(hosting.model("a"))
    lost = hosting.model("b")
    publication.publish(hosting.store, lost.champion.folder)
    hosting.store.delete(f"adapters/{lost.champion.digest}/adapter_config.json")
    told = reason(lambda: hosting.backend.serve(lost))
    assert f"does not load {lost.champion.digest[:12]}" in told and "Unable to find LoRA" in told
    assert hosting.serves("a")


def test_another_image_is_another_ray_service_and_the_old_one_goes_once_it_is_settled(
    hosting: RayHosting, services: RayServiceController, server: KubernetesServer
) -> None:
    model = hosting.model("a")
    hosting.backend.serve(model)
    (old,) = names(server)
    hosting.with_image("d")
    assert hosting.backend.find(model) is None
    hosting.backend.serve(model)
    assert len(names(server)) == 2, "until it is known for good that the new one serves"
    assert hosting.backend.settle(model.champion.digest) is False
    wait_until(lambda: old not in names(server))
    assert len(names(server)) == 1 and hosting.serves("a")


def test_a_new_image_that_does_not_deploy_goes_and_the_old_one_serves(
    hosting: RayHosting,
    services: RayServiceController,
    server: KubernetesServer,
    ray: StandInRay,
    caplog: Any,
) -> None:
    caplog.set_level(logging.INFO)
    model = hosting.model("a")
    hosting.backend.serve(model)
    before = names(server)
    hosting.with_image("d")

    def failed(item: Object) -> Any:
        ray.says = ("DEPLOY_FAILED", "ImportError: no module\n named vllm")
        return ray.runs(item)

    services.run = failed
    told = reason(lambda: hosting.backend.serve(model))
    assert "did not come up: model-server-1: DEPLOY_FAILED: ImportError: no module named" in told
    assert "host: waiting: " in caplog.text
    ray.says = ("RUNNING", "")
    wait_until(lambda: names(server) == before)
    wait_until(lambda: hosting.serves("a"))


def test_a_flow_that_dies_before_the_proof_is_undone(
    hosting: RayHosting,
    services: RayServiceController,
    server: KubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = hosting.model("a")
    hosting.backend.serve(model)
    (old,) = names(server)
    hosting.with_image("d")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hosting.backend, "_end_change", dies)
    with pytest.raises(KeyboardInterrupt):
        hosting.backend.serve(model)
    monkeypatch.undo()
    assert len(names(server)) == 2
    assert hosting.backend.settle(model.champion.digest) is True, "the old one is put back"
    wait_until(lambda: names(server) == [old])
    assert hosting.backend.settle(model.champion.digest) is False


def test_a_ray_service_that_does_not_come_up_in_time_says_what_it_waits_for(
    hosting: RayHosting, server: KubernetesServer
) -> None:
    told = reason(lambda: hosting.backend.serve(hosting.model(timeout_s=1)))
    assert "KubeRay has made no pods yet" in told
    assert server.store.items(DEPLOYMENT) == []


def test_a_model_server_that_was_started_anew_is_proven_anew(
    hosting: RayHosting, services: RayServiceController, ray: StandInRay, server: KubernetesServer
) -> None:
    model = hosting.model("a", num_replicas=1)
    hosting.backend.serve(model)
    (service,) = names(server)
    ray.stop(service, "model-server-1")
    wait_until(lambda: hosting.backend.find(model) is None)
    ray.plays_as_base = True
    ray.restart(service, "model-server-1")
    with pytest.raises(Exception, match="503"):
        hosting.serves("a")
    ray.plays_as_base = False
    wait_until(lambda: hosting.backend.find(model))
    assert hosting.serves("a")


def test_an_error_of_the_model_is_passed_on_and_costs_no_proof(
    hosting: RayHosting, services: RayServiceController, ray: StandInRay
) -> None:
    hosting.backend.serve(hosting.model("a"))
    ray.fails = 1
    with pytest.raises(Exception, match="500"):
        hosting.serves("a")
    assert hosting.backend.find(hosting.model("a"))


def test_somebody_elses_ray_service_is_neither_taken_nor_deleted(
    hosting: RayHosting, services: RayServiceController, server: KubernetesServer
) -> None:
    model = hosting.model("a")
    (planned,) = hosting.servers.planned(model)
    planned["metadata"]["labels"] = {}
    server.store.create(RAY_SERVICE, "ariadne", planned)
    assert "is somebody else's" in reason(lambda: hosting.backend.serve(model))
    hosting.with_image("d")
    hosting.backend.serve(model)
    hosting.backend.settle(model.champion.digest)
    assert planned["metadata"]["name"] in names(server)


def test_the_rights_in_the_file_are_all_used(
    hosting: RayHosting, services: RayServiceController, server: KubernetesServer
) -> None:
    hosting.backend.serve(hosting.model("a"))
    hosting.with_image("d")
    hosting.backend.serve(hosting.model("a"))
    hosting.backend.settle(hosting.model("a").champion.digest)
    files = (RBAC, SERVING_RBAC)
    own = {right for rule in read_rules(RAY_RBAC) for right in rule.rights()}
    shared = {right for file in files for rule in read_rules(file) for right in rule.rights()}
    assert own <= server.rights_used() <= own | shared


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("extra", [{}, {"pod_priority": "high", "queue": "team"}])
def test_every_manifest_is_valid_under_the_strict_schema(
    hosting: RayHosting, device: str, extra: Object
) -> None:
    pod = hosting.pod.model_copy(update=extra)
    model = hosting.model(device=device)
    made = manifest_of(pod, hosting.config, hosting.kuberay, model, ADAPTERS)
    schemas.check("RayService", "ray.io", "v1", made)
    made["spec"]["rayClusterConfig"]["no-such-field"] = 1
    with pytest.raises(schemas.statuses.Refusal, match="no-such-field"):
        schemas.check("RayService", "ray.io", "v1", made)


def test_a_worker_has_a_gpu_and_the_head_none_and_all_only_read_the_volume(
    hosting: RayHosting,
) -> None:
    (made,) = hosting.servers.planned(hosting.model())
    cluster = made["spec"]["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == 2 and workers["rayStartParams"]["num-gpus"] == "1"
    pods = [each["template"]["spec"] for each in (cluster["headGroupSpec"], workers)]
    (head,), (worker,) = (pod["containers"] for pod in pods)
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    assert [pod["nodeSelector"]["node.kubernetes.io/instance-type"] for pod in pods] == [
        HEAD["instance_type"], POD_CONFIG["instance_type"]
    ]  # fmt: skip
    for container in (head, worker):
        assert {"name": "serve", "containerPort": 8000} in container["ports"]
        shared = next(m for m in container["volumeMounts"] if m["mountPath"] == "/shared")
        assert shared["readOnly"] is True


def test_each_model_server_is_an_application_of_its_own(hosting: RayHosting) -> None:
    (made,) = hosting.servers.planned(hosting.model())
    config = json.loads(made["spec"]["serveConfigV2"])
    apps = hosting.servers.addresses(hosting.model())
    assert [app["name"] for app in config["applications"]] == [
        each.name for each in apps if isinstance(each, RayApp)
    ]
    (llm,) = config["applications"][0]["args"]["llm_configs"]
    assert llm["lora_config"]["dynamic_lora_loading_path"] == ADAPTERS
    assert llm["engine_kwargs"]["max_lora_rank"] == 32


def test_the_door_stands_on_the_heads_kind_of_machine_and_has_no_server(
    hosting: RayHosting,
) -> None:
    spec = hosting.deployment(hosting.model())["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"]] == ["door"]
    assert spec["nodeSelector"]["node.kubernetes.io/instance-type"] == HEAD["instance_type"]


GIVEN: Object = {
    "host.backend": "ray_service",
    "host.pod": POD_CONFIG,
    "host.ray": RAY_CONFIG,
    "store": {"url": "s3://mazes/home"},
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"host.backend": "vllm_deployment"}, "host.ray and backend = 'ray_service' belong"),
        ({"store": {"url": "/shared/store"}}, "Ray Serve reads adapters from S3"),
        ({"host.pod": POD_CONFIG | {"service": "a" * 39}}, "has 38 letters"),
        ({"host.ray": RAY_CONFIG | {"image": "server:latest"}}, "host.ray.image"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: Object, said: str) -> None:
    assert said in reason(lambda: load_config("hyperpod", GIVEN | changed))


def test_the_profile_picks_it_and_says_where_adapters_are(
    hosting: RayHosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody asks it
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    backends = make_backends(load_config("hyperpod", GIVEN), Home(tmp_path))
    planned = backends.models.plan(hosting.model())
    assert [each.call for each in planned] == [
        "create RayService", "create Deployment", "create Service", "create Service"
    ]  # fmt: skip
    assert planned[0].manifest and ADAPTERS in planned[0].manifest["spec"]["serveConfigV2"]
