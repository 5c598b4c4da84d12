"""The stand-in for the Kubernetes API, asked by the official client: it refuses as the real one."""

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import watch
from kubernetes.client import ApiClient, CoreV1Api, CustomObjectsApi
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config

from configs.kuberay import ApiConfig
from tasks.backends.ray_manifest import persistent_volume, ray_cluster, section
from tests.aws.profiles import FSX, IMAGE, cluster_config
from tests.kubernetes_api.operators import Operated
from tests.kubernetes_api.rbac import Rule
from tests.kubernetes_api.server import KubernetesServer
from tests.kubernetes_api.store import POD, RAY_CLUSTER
from tests.waiting import wait_until

RAY = ("ray.io", "v1", "ariadne", "rayclusters")
Object = dict[str, Any]


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    with KubernetesServer() as running:
        yield running


@pytest.fixture
def client(server: KubernetesServer, tmp_path: Path) -> ApiClient:
    return new_client_from_config(str(ApiConfig(**server.access(tmp_path)).kubeconfig))


@pytest.fixture
def rays(client: ApiClient) -> CustomObjectsApi:
    return CustomObjectsApi(client)


def manifest(name: str = "maze") -> Object:
    return ray_cluster(name, cluster_config(), IMAGE)


def refused(call: Any, *arguments: Any, **options: Any) -> ApiException:
    with pytest.raises(ApiException) as caught:
        call(*arguments, **options)
    return caught.value


def test_an_object_gets_a_version_a_uid_and_a_generation(rays: CustomObjectsApi) -> None:
    made: Any = rays.create_namespaced_custom_object(*RAY, manifest())
    assert made["spec"] == manifest()["spec"] and "status" not in made
    assert made["metadata"]["generation"] == 1 and made["metadata"]["uid"]
    again: Any = rays.get_namespaced_custom_object(*RAY, "maze")
    assert again == made


def test_a_missing_object_gives_the_real_status(rays: CustomObjectsApi) -> None:
    error = refused(rays.get_namespaced_custom_object, *RAY, "none")
    assert error.status == 404
    assert '"reason": "NotFound"' in error.body
    assert 'rayclusters.ray.io \\"none\\" not found' in error.body


def test_a_kind_that_is_not_installed_and_a_namespace_that_is_not_there(
    rays: CustomObjectsApi,
) -> None:
    error = refused(rays.list_namespaced_custom_object, "ray.io", "v1", "ariadne", "rayjobs")
    assert error.status == 404
    body = manifest() | {"metadata": {"name": "maze"}}
    place = ("ray.io", "v1", "nowhere", "rayclusters")
    error = refused(rays.create_namespaced_custom_object, *place, body)
    assert error.status == 404 and 'namespaces \\"nowhere\\" not found' in error.body


def test_a_second_object_of_a_name_is_refused(rays: CustomObjectsApi) -> None:
    rays.create_namespaced_custom_object(*RAY, manifest())
    error = refused(rays.create_namespaced_custom_object, *RAY, manifest())
    assert error.status == 409 and "AlreadyExists" in error.body


def test_a_stale_update_is_refused_and_a_fresh_one_counts_the_generation(
    rays: CustomObjectsApi,
) -> None:
    first: Any = rays.create_namespaced_custom_object(*RAY, manifest())
    second = copy.deepcopy(first)
    second["spec"]["workerGroupSpecs"][0]["replicas"] = 2
    made: Any = rays.replace_namespaced_custom_object(*RAY, "maze", second)
    assert made["metadata"]["generation"] == 2
    error = refused(rays.replace_namespaced_custom_object, *RAY, "maze", first)
    assert error.status == 409 and "the object has been modified" in error.body


def test_status_and_spec_are_written_apart(rays: CustomObjectsApi) -> None:
    made: Any = rays.create_namespaced_custom_object(*RAY, manifest())
    made["status"] = {"state": "ready"}
    made["spec"]["rayVersion"] = "9.9.9"
    kept: Any = rays.replace_namespaced_custom_object_status(*RAY, "maze", made)
    assert kept["status"] == {"state": "ready"} and kept["spec"]["rayVersion"] == "2.57.0"
    kept["status"] = {}
    kept["spec"]["rayVersion"] = "9.9.9"
    kept = rays.replace_namespaced_custom_object(*RAY, "maze", kept)
    assert kept["status"] == {"state": "ready"} and kept["spec"]["rayVersion"] == "9.9.9"


def test_unknown_fields_are_named_and_refused(rays: CustomObjectsApi) -> None:
    body = manifest()
    body["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    error = refused(rays.create_namespaced_custom_object, *RAY, body)
    assert error.status == 400
    place = "spec.headGroupSpec.template.spec.containers.0.imagePolicy"
    assert f'unknown field \\"{place}\\"' in error.body
    body = manifest()
    body["metadata"]["label"] = {}
    assert refused(rays.create_namespaced_custom_object, *RAY, body).status == 400


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "workerGroupSpecs", 0, "replicas"), "three"),
        (("spec", "workerGroupSpecs", 0, "groupName"), None),
    ],
)
def test_bad_values_are_invalid(rays: CustomObjectsApi, path: tuple[Any, ...], value: Any) -> None:
    body = manifest()
    place: Any = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    error = refused(rays.create_namespaced_custom_object, *RAY, body)
    assert error.status == 422 and "Invalid" in error.body


def test_the_kinds_of_kubernetes_itself_are_as_strict(
    server: KubernetesServer, client: ApiClient
) -> None:
    settings = {"claim": "fsx", "mount_path": "/shared", **FSX}
    volume = persistent_volume(section(cluster_config(kuberay__volume=settings)))
    made = CoreV1Api(client).create_persistent_volume(volume)
    assert made.spec.csi.driver == "fsx.csi.aws.com"
    for key, value, status in (
        ("mountOption", ["flock"], 400),
        ("mount_options", ["flock"], 400),
        ("accessModes", "ReadWriteMany", 422),
    ):  # the official client would not even send these
        bad = copy.deepcopy(volume)
        bad["metadata"]["name"] = "other"
        bad["spec"][key] = value
        headers = {"Authorization": f"Bearer {server.token}"}
        url = f"{server.url}/api/v1/persistentvolumes"
        assert httpx.post(url, json=bad, headers=headers, timeout=10).status_code == status


def test_selectors_choose_by_labels_and_fields(
    server: KubernetesServer, rays: CustomObjectsApi
) -> None:
    for name in ("one", "two"):
        rays.create_namespaced_custom_object(*RAY, manifest(name))

    def names(**selectors: str) -> list[str]:
        found: Any = rays.list_namespaced_custom_object(*RAY, **selectors)
        return [item["metadata"]["name"] for item in found["items"]]

    instance = "app.kubernetes.io/instance"
    assert names() == ["one", "two"]
    assert names(label_selector=f"{instance}=one") == ["one"]
    assert names(label_selector=f"{instance}!=one,{instance}") == ["two"]
    assert names(label_selector=f"{instance} in (two, three)") == ["two"]
    assert names(label_selector=f"{instance} notin (two),!none") == ["one"]
    assert names(field_selector="metadata.name=two") == ["two"]
    error = refused(rays.list_namespaced_custom_object, *RAY, field_selector="spec.rayVersion=2")
    assert error.status == 400


def test_lists_come_in_pages(rays: CustomObjectsApi) -> None:
    for name in ("a", "b", "c"):
        rays.create_namespaced_custom_object(*RAY, manifest(name))
    page: Any = rays.list_namespaced_custom_object(*RAY, limit=2)
    assert len(page["items"]) == 2 and page["metadata"]["remainingItemCount"] == 1
    rest: Any = rays.list_namespaced_custom_object(
        *RAY, limit=2, _continue=page["metadata"]["continue"]
    )
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c"]
    assert "continue" not in rest["metadata"]


def test_a_watch_tells_every_change_after_its_version(rays: CustomObjectsApi) -> None:
    made: Any = rays.create_namespaced_custom_object(*RAY, manifest())
    seen: list[tuple[str, str]] = []

    def look() -> None:
        version = made["metadata"]["resourceVersion"]
        for event in watch.Watch().stream(
            rays.list_namespaced_custom_object, *RAY, resource_version=version, timeout_seconds=20
        ):
            seen.append((event["type"], event["object"]["metadata"]["name"]))
            if event["type"] == "DELETED":
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    rays.create_namespaced_custom_object(*RAY, manifest("other"))
    rays.patch_namespaced_custom_object_status(*RAY, "maze", {"status": {"state": "ready"}})
    rays.delete_namespaced_custom_object(*RAY, "maze")
    watcher.join(20)
    assert seen == [("ADDED", "other"), ("MODIFIED", "maze"), ("DELETED", "maze")]


def test_a_watch_from_a_forgotten_version_is_gone(
    server: KubernetesServer, rays: CustomObjectsApi
) -> None:
    made: Any = rays.create_namespaced_custom_object(*RAY, manifest())
    server.store.forget_history()
    version = made["metadata"]["resourceVersion"]
    error = refused(rays.list_namespaced_custom_object, *RAY, watch=True, resource_version=version)
    assert error.status == 410


def test_rights_are_given_by_verb_resource_and_namespace(
    server: KubernetesServer, rays: CustomObjectsApi, client: ApiClient
) -> None:
    server.rules = [
        Rule(frozenset({"ray.io"}), frozenset({"rayclusters"}), frozenset({"get"}), "ariadne")
    ]
    assert refused(rays.get_namespaced_custom_object, *RAY, "maze").status == 404
    error = refused(rays.create_namespaced_custom_object, *RAY, manifest())
    assert error.status == 403
    assert (
        'cannot create resource \\"rayclusters\\" in API group \\"ray.io\\" in the namespace '
        '\\"ariadne\\"' in error.body
    )
    other = ("ray.io", "v1", "default", "rayclusters", "maze")
    assert refused(rays.get_namespaced_custom_object, *other).status == 403
    assert "at the cluster scope" in refused(CoreV1Api(client).list_node).body
    assert ("", "nodes", "list") in server.rights_used()


def test_a_wrong_token_is_unauthorized(server: KubernetesServer, rays: CustomObjectsApi) -> None:
    server.token = "another"
    assert refused(rays.get_namespaced_custom_object, *RAY, "maze").status == 401


def test_a_deletion_is_of_the_object_that_was_meant(rays: CustomObjectsApi) -> None:
    rays.create_namespaced_custom_object(*RAY, manifest())
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "another"}}
    error = refused(rays.delete_namespaced_custom_object, *RAY, "maze", body=body)
    assert error.status == 409 and "Precondition failed" in error.body


def test_a_foreground_deletion_waits_for_pods_and_the_operator(
    server: KubernetesServer, rays: CustomObjectsApi
) -> None:
    may_end = threading.Event()

    def slow(cluster: Operated) -> None:
        cluster.add_pods()
        cluster.ending.wait()
        may_end.wait()

    server.operators.operator = slow
    rays.create_namespaced_custom_object(*RAY, manifest())
    wait_until(lambda: len(server.store.items(POD)) == 4)
    server.store.dead_nodes.add("maze-worker-3-n")
    options = {"kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    rays.delete_namespaced_custom_object(*RAY, "maze", body=options)
    (left,) = server.store.items(POD)
    assert left["metadata"]["name"] == "maze-worker-3" and left["metadata"]["deletionTimestamp"]
    server.store.delete(POD, "ariadne", "maze-worker-3", {"gracePeriodSeconds": 0})
    (going,) = server.store.items(RAY_CLUSTER)
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
    may_end.set()
    wait_until(lambda: server.store.items(RAY_CLUSTER) == [])


def test_a_background_deletion_takes_the_object_at_once(
    server: KubernetesServer, rays: CustomObjectsApi
) -> None:
    rays.create_namespaced_custom_object(*RAY, manifest())
    rays.delete_namespaced_custom_object(*RAY, "maze")
    assert server.store.items(RAY_CLUSTER) == []


def test_an_operator_that_fails_fails_the_test() -> None:
    def broken(cluster: Operated) -> None:
        raise ZeroDivisionError(cluster.name)

    server = KubernetesServer(broken)
    with pytest.raises(AssertionError, match="ZeroDivisionError: maze"), server:
        server.store.create(RAY_CLUSTER, "ariadne", manifest())


def test_a_strategic_merge_patch_of_a_custom_resource_is_not_supported(
    rays: CustomObjectsApi,
) -> None:
    rays.create_namespaced_custom_object(*RAY, manifest())
    kind = "application/strategic-merge-patch+json"
    error = refused(
        rays.patch_namespaced_custom_object, *RAY, "maze", {"spec": {}}, _content_type=kind
    )
    assert error.status == 415
