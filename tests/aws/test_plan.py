"""What `preflight --plan` prints is what the run then sends, and printing it sends nothing."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.client
import pytest
import yaml
from moto.server import ThreadedMotoServer
from rich.console import Console

from configs.loader import load_config
from configs.schema import PostTrainConfig
from flows.show import show_plan
from tasks.backends.protocols import Image, Planned
from tasks.backends.wiring import Backends, make_backends
from tasks.home import Home
from tasks.preflight.plan import plan
from tasks.preflight.stage import examine
from tests.aws.profiles import FSX, IMAGE, Setting
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import CLAIM, RAY_CLUSTER, VOLUME
from tests.samples import reason

READS = {"get", "list", "watch"}


class Registry:
    """Implements `ImageBuilder` for an image that is pushed already, or for none."""

    def __init__(self, image: Image | None) -> None:
        self._image = image

    def digest(self) -> str:
        return IMAGE.digest

    def find(self, digest: str) -> Image | None:
        return self._image

    def build(self, digest: str, *, force: bool) -> Image:
        raise AssertionError("a plan builds nothing")


class World:
    """A profile on a Kubernetes, with an image in a registry or none."""

    def __init__(self, make: Callable[..., Setting], folder: Path, **changes: Any) -> None:
        self.setting = make(**changes)
        self.home = Home(folder / "home")
        config = load_config("hyperpod", {"name": "maze", "preflight.region": ""})
        self.config: PostTrainConfig = config.model_copy(update={"cluster": self.setting.config})

    def plan(self, image: Image | None = IMAGE) -> tuple[Planned, ...]:
        real = make_backends(self.config, self.home)
        backends = Backends(Registry(image), self.setting.backend, real.models, real.tracker)
        return plan(self.config, self.home, backends)


def printed(planned: tuple[Planned, ...]) -> str:
    text = io.StringIO()
    show_plan(planned, Console(file=text, soft_wrap=True, highlight=False))
    return text.getvalue()


def as_sent(found: dict[str, Any]) -> dict[str, Any]:
    """An object of the API without what the API itself has added."""
    added = {"uid", "resourceVersion", "creationTimestamp", "generation", "finalizers"}
    meta = {key: value for key, value in found["metadata"].items() if key not in added}
    bare = {key: value for key, value in found.items() if key != "status"}
    return bare | {"metadata": meta}


@pytest.mark.parametrize("with_volume", [False, True])
def test_the_manifests_that_are_printed_are_those_that_are_created_later(
    make: Callable[..., Setting],
    kuberay_server: KubernetesServer,
    tmp_path: Path,
    with_volume: bool,
) -> None:
    volume = {f"kuberay__volume__{key}": value for key, value in FSX.items()}
    claim = {"kuberay__volume__claim": "mazes"}
    world = World(make, tmp_path, **(volume | claim if with_volume else {}))
    documents = [each for each in yaml.safe_load_all(printed(world.plan())) if each]
    assert {call.verb for call in kuberay_server.calls} <= READS
    world.setting.start()
    store = kuberay_server.store
    created = [as_sent(store.get(RAY_CLUSTER, "ariadne", "maze"))]
    if with_volume:
        first = [store.get(VOLUME, "", "ariadne-mazes"), store.get(CLAIM, "ariadne", "mazes")]
        created = [*map(as_sent, first), *created]
    assert documents == created


def test_the_calls_that_are_printed_are_those_that_are_made_in_their_order(
    make: Callable[..., Setting], kuberay_server: KubernetesServer, tmp_path: Path
) -> None:
    volume = {f"kuberay__volume__{key}": value for key, value in FSX.items()}
    world = World(make, tmp_path, **volume, kuberay__volume__claim="mazes")
    told = [each.call.split()[1] for each in world.plan() if each.manifest]
    kuberay_server.calls.clear()
    world.setting.start()
    made = [call.resource for call in kuberay_server.calls if call.verb == "create"]
    assert (
        [path.split("/")[-1] for path in told]
        == made
        == [
            "persistentvolumes",
            "persistentvolumeclaims",
            "rayclusters",
        ]
    )


def test_what_is_there_already_is_not_planned_again(
    make: Callable[..., Setting], kuberay_server: KubernetesServer, tmp_path: Path
) -> None:
    world = World(make, tmp_path)
    world.setting.start()
    calls = [each.call for each in world.plan()]
    assert "none: RayCluster maze is there, of this profile and image" in calls
    assert not any(call.startswith("POST /apis") for call in calls)
    other = IMAGE.model_copy(update={"reference": IMAGE.reference.replace("aaa", "bbb")})
    calls = [each.call.split(",")[0] for each in world.plan(other)]
    path = "/apis/ray.io/v1/namespaces/ariadne/rayclusters"
    assert calls.index(f"DELETE {path}/maze") < calls.index(f"POST {path}")


def test_somebody_elses_cluster_is_refused_in_the_plan_as_in_the_run(
    make: Callable[..., Setting], kuberay_server: KubernetesServer, tmp_path: Path
) -> None:
    world = World(make, tmp_path)
    world.setting.start()
    theirs = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "studio"}}}
    kuberay_server.store.patch(RAY_CLUSTER, "ariadne", "maze", theirs)
    assert reason(world.plan) == reason(world.setting.start)


def test_an_adopted_cluster_is_neither_made_nor_deleted(
    make: Callable[..., Setting], kuberay_server: KubernetesServer, tmp_path: Path
) -> None:
    text = printed(World(make, tmp_path, kuberay__adopt="studio").plan())
    assert "RayCluster studio is adopted as it is" in text and "is left as it was" in text
    assert "DELETE" not in text and "POST /apis" not in text


def test_an_image_that_is_not_built_yet_is_said_to_be(
    make: Callable[..., Setting], kuberay_server: KubernetesServer, tmp_path: Path
) -> None:
    text = printed(World(make, tmp_path).plan(None))
    assert "build image 222222222222" in text and "is known only then" in text
    assert "image: image-to-be-built@sha256:" in text
    here = IMAGE.model_copy(update={"reference": ""})
    assert "pods need one in a registry" in printed(World(make, tmp_path).plan(here))


def test_a_plan_without_a_cluster_to_ask_assumes_an_empty_one(
    make: Callable[..., Setting], kuberay_server: KubernetesServer, tmp_path: Path
) -> None:
    world = World(make, tmp_path, kuberay__api={"access": "in_cluster"})
    note, _claim, cluster = world.plan()[1:4]
    assert note.call.startswith("none: as if nothing were there yet: ")
    assert cluster.manifest and cluster.manifest["kind"] == "RayCluster"


def test_a_plan_ends_with_what_it_costs_and_makes_no_file(
    make: Callable[..., Setting], kuberay_server: KubernetesServer, tmp_path: Path
) -> None:
    world = World(make, tmp_path)
    assert "USD" in world.plan()[-1].call
    assert not world.home.root.exists() and not world.home.runtime.exists()


@pytest.fixture
def aws_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operations that reach a server which speaks AWS's protocols."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    made: list[str] = []
    send = botocore.client.BaseClient._make_api_call

    def note(self: Any, operation: str, arguments: Any) -> Any:
        made.append(operation)
        return send(self, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", note)
    yield made
    server.stop()


def test_preflight_only_asks_the_account(aws_calls: list[str], tmp_path: Path) -> None:
    found = {each.name: each for each in examine(load_config("hyperpod"), Home(tmp_path / "home"))}
    assert found["credentials"].ok and "123456789012" in found["credentials"].detail
    assert aws_calls[0] == "GetCallerIdentity"
    assert all(call.startswith(("Get", "List")) for call in aws_calls)
    assert not (tmp_path / "home").exists()
