"""The stand-in refuses what only a real API server would notice, and can lose its answers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import watch
from kubernetes.client import ApiClient, CustomObjectsApi
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config

from configs.kuberay import ApiConfig
from tasks.backends.kubernetes_api import RAY_CLUSTERS, KubernetesApi
from tasks.backends.ray_manifest import ray_cluster
from tests.aws.profiles import IMAGE, cluster_config
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import RAY_CLUSTER

RAY = ("ray.io", "v1", "ariadne", "rayclusters")
Object = dict[str, Any]


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with KubernetesServer() as running:
        yield running


@pytest.fixture
def access(server: KubernetesServer, tmp_path: Path) -> ApiConfig:
    return ApiConfig(**server.access(tmp_path))


@pytest.fixture
def rays(access: ApiConfig) -> CustomObjectsApi:
    client: ApiClient = new_client_from_config(str(access.kubeconfig))
    return CustomObjectsApi(client)


def manifest(name: str = "maze") -> Object:
    return ray_cluster(name, cluster_config(), IMAGE)


def refusal(rays: CustomObjectsApi, body: Object) -> ApiException:
    with pytest.raises(ApiException) as caught:
        rays.create_namespaced_custom_object(*RAY, body)
    return caught.value


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("", "name", "Maze"),
        ("", "name", "maze_1"),
        ("", "name", "m" * 254),
        ("labels", "team", "two words"),
        ("labels", "team", "t" * 64),
        ("labels", "a/b/c", "t"),
        ("labels", "-team", "t"),
        ("annotations", "Big.Example/note", "t"),
        ("annotations", "note", "t" * 300_000),
    ],
)
def test_names_labels_and_annotations_are_checked(
    rays: CustomObjectsApi, part: str, key: str, value: str
) -> None:
    body = manifest()
    (body["metadata"].setdefault(part, {}) if part else body["metadata"])[key] = value
    error = refusal(rays, body)
    assert error.status == 422 and "metadata." in error.body


def test_what_a_list_with_keys_holds_twice_is_refused(rays: CustomObjectsApi) -> None:
    container: Object = manifest()["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    for part, again in (
        ("env", {"name": "PYTHONPATH", "value": "/elsewhere"}),
        ("ports", {"name": "again", "containerPort": 8080, "protocol": "TCP"}),
        ("volumeMounts", {"name": "other", "mountPath": "/shared"}),
    ):
        body = manifest()
        template = body["spec"]["headGroupSpec"]["template"]["spec"]
        template["containers"][0][part] = [*container[part], again]
        error = refusal(rays, body)
        assert error.status == 422 and "Duplicate value" in error.body, part


def test_an_integer_beyond_its_format_is_refused(rays: CustomObjectsApi) -> None:
    body = manifest()
    body["spec"]["workerGroupSpecs"][0]["replicas"] = 2**31
    assert refusal(rays, body).status == 422


def test_an_update_of_a_custom_resource_names_the_version_it_is_made_from(
    rays: CustomObjectsApi,
) -> None:
    rays.create_namespaced_custom_object(*RAY, manifest())
    with pytest.raises(ApiException) as caught:
        rays.replace_namespaced_custom_object(*RAY, "maze", manifest())
    assert caught.value.status == 422 and "must be specified for an update" in caught.value.body


def test_a_watch_from_no_version_begins_with_what_there_is(rays: CustomObjectsApi) -> None:
    rays.create_namespaced_custom_object(*RAY, manifest("one"))
    rays.create_namespaced_custom_object(*RAY, manifest("two"))
    watching = watch.Watch()
    seen = []
    for event in watching.stream(rays.list_namespaced_custom_object, *RAY, timeout_seconds=20):
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if len(seen) == 2:
            watching.stop()
    assert seen == [("ADDED", "one"), ("ADDED", "two")]


def test_a_creation_whose_answer_is_lost_is_made_once(
    server: KubernetesServer, access: ApiConfig
) -> None:
    api = KubernetesApi.connect("ariadne", access)
    server.lost_answers = 1
    assert api.create(RAY_CLUSTERS, manifest()) is False  # the second try finds the first
    assert [call.verb for call in server.calls] == ["create", "create"]
    assert len(server.store.items(RAY_CLUSTER)) == 1


def test_a_deletion_whose_answer_is_lost_is_done(
    server: KubernetesServer, access: ApiConfig
) -> None:
    api = KubernetesApi.connect("ariadne", access)
    api.create(RAY_CLUSTERS, manifest())
    known = api.get(RAY_CLUSTERS, "maze")
    assert known is not None
    server.lost_answers = 1
    api.delete(RAY_CLUSTERS, known)
    assert api.get(RAY_CLUSTERS, "maze") is None


def test_a_wait_for_a_change_lasts_until_there_is_one_or_its_time_is_over(
    server: KubernetesServer, access: ApiConfig
) -> None:
    """What there is already is no change: else whoever waits would ask without a pause."""
    api = KubernetesApi.connect("ariadne", access)
    api.create(RAY_CLUSTERS, manifest())
    known = api.get(RAY_CLUSTERS, "maze")
    assert known is not None
    began = time.monotonic()
    api.await_change(RAY_CLUSTERS, known, timeout_s=1)
    assert time.monotonic() - began > 0.9
    change = {"status": {"state": "ready"}}
    server.store.patch(RAY_CLUSTER, "ariadne", "maze", change, status=True)
    began = time.monotonic()
    api.await_change(RAY_CLUSTERS, known, timeout_s=25)
    assert time.monotonic() - began < 20
