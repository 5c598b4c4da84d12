"""Calls to the Kubernetes API: what passes is tried again, what does not is one line."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tenacity import wait_none

from configs.kuberay import ApiConfig
from tasks.backends import kubernetes_api
from tasks.backends.kubernetes_api import (
    CLAIMS,
    EVENTS,
    PODS,
    RAY_CLUSTERS,
    WORKLOADS,
    KubernetesApi,
    KubernetesError,
)
from tasks.backends.ray_manifest import ray_cluster
from tests.aws.profiles import IMAGE, cluster_config
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import RAY_CLUSTER


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with KubernetesServer() as running:
        yield running


@pytest.fixture
def api(server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesApi:
    monkeypatch.setattr(kubernetes_api, "_backoff", wait_none())
    return KubernetesApi.connect("ariadne", ApiConfig(**server.access(tmp_path)))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 0])
def test_a_failure_that_passes_is_not_noticed(
    server: KubernetesServer, api: KubernetesApi, status: int
) -> None:
    server.faults.extend([(status, "")] * 3)
    assert api.get(RAY_CLUSTERS, "none") is None
    assert not server.faults and len(server.calls) == 1


def test_a_failure_that_stays_is_told_after_a_while(
    server: KubernetesServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "_RETRY_FOR_S", 0)
    server.faults.append((503, ""))
    with pytest.raises(KubernetesError, match=r"answers 503 to GET .*unable to handle"):
        api.get(RAY_CLUSTERS, "none")


def test_the_server_says_how_long_to_stay_away(
    server: KubernetesServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", paused.append)
    server.faults.extend([(429, "7"), (429, ""), (429, "999")])
    api.get(RAY_CLUSTERS, "none")
    assert paused == [7, 0, 30]


@pytest.mark.parametrize("status", [400, 401, 403, 409, 422])
def test_a_refusal_is_not_tried_again(
    server: KubernetesServer, api: KubernetesApi, status: int
) -> None:
    server.faults.append((status, ""))
    with pytest.raises(KubernetesError) as caught:
        api.get(RAY_CLUSTERS, "none")
    assert caught.value.status == status and server.calls == []


def test_a_creation_whose_answer_is_lost_finds_its_own_object(
    server: KubernetesServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server.store.create
    lost: list[str] = []

    def create_and_hang_up(*arguments: object) -> object:
        answer = made(*arguments)  # type: ignore[arg-type]
        if not lost:
            lost.append("answer")
            raise ConnectionAbortedError
        return answer

    monkeypatch.setattr(server.store, "create", create_and_hang_up)
    manifest = ray_cluster("maze", cluster_config(), IMAGE)
    assert api.create(RAY_CLUSTERS, manifest) is False
    assert lost == ["answer"] and len(server.store.items(RAY_CLUSTER)) == 1


def test_a_creation_asks_for_strictness(server: KubernetesServer, api: KubernetesApi) -> None:
    manifest = ray_cluster("maze", cluster_config(), IMAGE)
    assert api.create(RAY_CLUSTERS, manifest) is True
    (call,) = server.made("create", "rayclusters")
    assert ("fieldValidation", "Strict") in call.query
    manifest["spec"]["replicas"] = 3
    with pytest.raises(KubernetesError, match=r'unknown field "spec\.replicas"'):
        api.create(RAY_CLUSTERS, manifest)


def test_a_list_is_read_to_its_last_page(
    server: KubernetesServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "_PAGE", 2)
    for number in range(5):
        server.store.create(
            RAY_CLUSTER, "ariadne", ray_cluster(f"maze-{number}", cluster_config(), IMAGE)
        )
    found = api.list(RAY_CLUSTERS)
    assert [item["metadata"]["name"] for item in found] == [f"maze-{n}" for n in range(5)]
    assert len(server.made("list", "rayclusters")) == 3


def test_a_deletion_leaves_another_object_of_the_name_alone(
    server: KubernetesServer, api: KubernetesApi
) -> None:
    api.create(RAY_CLUSTERS, ray_cluster("maze", cluster_config(), IMAGE))
    known = api.get(RAY_CLUSTERS, "maze")
    assert known is not None
    known["metadata"]["uid"] = "an-earlier-one"
    api.delete(RAY_CLUSTERS, known)
    assert len(server.store.items(RAY_CLUSTER)) == 1


def test_a_watch_ends_at_once_when_its_version_is_forgotten(
    server: KubernetesServer, api: KubernetesApi
) -> None:
    api.create(RAY_CLUSTERS, ray_cluster("maze", cluster_config(), IMAGE))
    known = api.get(RAY_CLUSTERS, "maze")
    assert known is not None
    server.store.forget_history()
    api.await_change(RAY_CLUSTERS, known, timeout_s=30)
    assert len(server.made("watch", "rayclusters")) == 1


def test_want_of_rights_names_the_file_that_gives_them(
    server: KubernetesServer, api: KubernetesApi
) -> None:
    server.rules = []
    with pytest.raises(KubernetesError) as caught:
        api.list(PODS)
    assert 'cannot list resource "pods"' in str(caught.value)
    assert str(caught.value).endswith("an administrator can apply configs/kuberay-rbac.yaml")


def test_a_wrong_token_is_one_line_without_the_token(
    server: KubernetesServer, api: KubernetesApi
) -> None:
    server.accepts = lambda token: False
    with pytest.raises(KubernetesError, match=r"answers 401 to GET .*credentials") as caught:
        api.get(CLAIMS, "fsx-claim")
    assert "\n" not in str(caught.value) and server.token not in str(caught.value)


def test_a_server_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens on it
        server = KubernetesServer()
        settings = server.access(tmp_path)
        path = settings["kubeconfig"]
        path.write_text(path.read_text().replace(server.url, f"http://{_address(taken)}"))
        monkeypatch.setattr(kubernetes_api, "_RETRY_FOR_S", 0)
        api = KubernetesApi.connect("ariadne", ApiConfig(**settings))
        with pytest.raises(KubernetesError, match=r"does not answer: .*cluster.kuberay.api") as e:
            api.get(RAY_CLUSTERS, "maze")
    assert "\n" not in str(e.value) and e.value.status == 0


def test_a_server_that_is_silent_is_left_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "_RETRY_FOR_S", 0)
    monkeypatch.setattr(kubernetes_api, "_TIMEOUT_S", (0.5, 0.5))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = KubernetesServer()
        settings = server.access(tmp_path)
        path = settings["kubeconfig"]
        path.write_text(path.read_text().replace(server.url, f"http://{_address(silent)}"))
        api = KubernetesApi.connect("ariadne", ApiConfig(**settings))
        with pytest.raises(KubernetesError, match=r"does not answer: .*timed out"):
            api.get(RAY_CLUSTERS, "maze")


def test_a_context_of_the_kubeconfig_is_chosen(server: KubernetesServer, tmp_path: Path) -> None:
    settings = server.access(tmp_path)
    path = settings["kubeconfig"]
    known = yaml.safe_load(path.read_text()) | {"current-context": "elsewhere"}
    path.write_text(yaml.safe_dump(known))
    api = KubernetesApi.connect("ariadne", ApiConfig(**settings, context="test"))
    assert api.get(RAY_CLUSTERS, "none") is None
    with pytest.raises(KubernetesError, match=r"'kubeconfig' finds no credentials: .*nowhere"):
        KubernetesApi.connect("ariadne", ApiConfig(**settings, context="nowhere"))


def test_a_kubeconfig_that_is_missing_is_one_line(tmp_path: Path) -> None:
    config = ApiConfig(access="kubeconfig", kubeconfig=tmp_path / "none")
    with pytest.raises(KubernetesError, match="'kubeconfig' finds no credentials"):
        KubernetesApi.connect("ariadne", config)


def test_the_account_of_a_pod_is_read_where_kubernetes_puts_it(
    server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.config import incluster_config

    (tmp_path / "token").write_text(server.token)
    (tmp_path / "ca.crt").write_text("certificates")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    config = kubernetes_api._in_cluster(ApiConfig())
    assert config.host == server.url.replace("http:", "https:")
    assert config.get_api_key_with_prefix("BearerToken").lower() == f"bearer {server.token}"


def test_kinds_that_are_not_installed_are_not_found(api: KubernetesApi) -> None:
    assert api.list(WORKLOADS) == [] and api.list(EVENTS) == []
    missing = kubernetes_api.Kind("rayjobs", "ray.io")
    with pytest.raises(KubernetesError, match="could not find the requested resource") as caught:
        api.list(missing)
    assert caught.value.status == 404 and "is KubeRay installed" in str(caught.value)


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()
    return f"{host}:{port}"
