"""What the pipeline would create on Kubernetes, against the CRD that KubeRay installs."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from configs.loader import ROOT, load_config
from tasks.backends.ray_manifest import (
    SPEC_DIGEST,
    persistent_volume,
    ray_cluster,
    section,
    volume_claim,
)
from tests.aws.profiles import FSX, IMAGE, cluster_config
from tests.kubernetes_api import schemas
from tests.samples import reason

QUEUE = {"kuberay__queue": "hyperpod-ns-maze-localqueue", "kuberay__priority": "training-priority"}
REDIS = {"kuberay__redis": {"address": "redis.ariadne:6379", "password_secret": "redis"}}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    QUEUE,
    REDIS,
    {"kuberay__pod_priority": "high", "kuberay__remote_endpoint": False},
    {"kuberay__worker__efa_interfaces": 1, "kuberay__head__only_healthy": False},
    {"num_workers": 1, "gpus_per_worker": 8, "kuberay__environment": {"NCCL_DEBUG": "INFO"}},
)


def made(**changes: Any) -> Any:
    return ray_cluster("maze", cluster_config(**changes), IMAGE)


def container(group: Any) -> Any:
    (only,) = group["template"]["spec"]["containers"]
    return only


def groups(manifest: Any) -> tuple[Any, Any]:
    (workers,) = manifest["spec"]["workerGroupSpecs"]
    return manifest["spec"]["headGroupSpec"], workers


@pytest.mark.parametrize(("first", "second"), [*product(range(6), repeat=2)])
def test_every_manifest_is_valid_under_the_strict_schema(first: int, second: int) -> None:
    manifest = made(**(OPTIONS[first] | OPTIONS[second]))
    schemas.check("RayCluster", "ray.io", "v1", manifest)
    # The schema was made strict and covers pods, else the check above would prove nothing.
    head, _ = groups(manifest)
    container(head)["no-such-field"] = 1
    with pytest.raises(schemas.statuses.Refusal, match="no-such-field"):
        schemas.check("RayCluster", "ray.io", "v1", manifest)


def test_volume_and_claim_are_valid_and_bind_each_other() -> None:
    volume = {"claim": "fsx-claim", "mount_path": "/shared", **FSX}
    kuberay = section(cluster_config(kuberay__volume=volume))
    pv, pvc = persistent_volume(kuberay), volume_claim(kuberay)
    schemas.check("PersistentVolume", "", "v1", pv)
    schemas.check("PersistentVolumeClaim", "", "v1", pvc)
    assert pvc["spec"]["volumeName"] == pv["metadata"]["name"]
    claimed = pv["spec"]["claimRef"]
    assert claimed == {"namespace": pvc["metadata"]["namespace"], "name": pvc["metadata"]["name"]}
    # Without it the file system would be deleted with the claim.
    assert pv["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert pv["spec"]["csi"]["volumeHandle"] == FSX["file_system_id"]
    assert pv["spec"]["mountOptions"] == ["flock"], "the writer's lock has to hold between nodes"
    assert pv["spec"]["storageClassName"] == pvc["spec"]["storageClassName"] == ""


def test_pods_go_to_healthy_machines_of_their_kind_with_gpus_and_efa() -> None:
    head, workers = groups(made(kuberay__worker__efa_interfaces=1))
    healthy = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    kind = "node.kubernetes.io/instance-type"
    assert head["template"]["spec"]["nodeSelector"] == {kind: "ml.r5d.16xlarge", **healthy}
    assert workers["template"]["spec"]["nodeSelector"] == {kind: "ml.g7e.12xlarge", **healthy}
    resources = container(workers)["resources"]
    assert resources["limits"] == resources["requests"]
    assert resources["limits"]["nvidia.com/gpu"] == "2"
    assert resources["limits"]["vpc.amazonaws.com/efa"] == "1"
    assert "nvidia.com/gpu" not in container(head)["resources"]["limits"]
    tolerated = [each["key"] for each in workers["template"]["spec"]["tolerations"]]
    assert tolerated == ["nvidia.com/gpu"], "the taint of a node under a health check is kept off"
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (3, 3, 3)


def test_without_efa_nothing_asks_for_it() -> None:
    assert "efa" not in str(groups(made())).lower(), "the profile's image has no plugin for it"
    _, workers = groups(made(kuberay__worker__efa_interfaces=1))
    assert {"name": "FI_PROVIDER", "value": "efa"} in container(workers)["env"]


def test_the_dashboard_is_open_to_the_endpoint_operator_and_shown_in_studio() -> None:
    manifest = made()
    head, _ = groups(manifest)
    assert head["rayStartParams"]["dashboard-host"] == "0.0.0.0"
    annotation = "access.sagemaker.amazonaws.com/enabled"
    assert manifest["metadata"]["annotations"][annotation] == "true"
    closed = made(kuberay__remote_endpoint=False)
    assert closed["metadata"]["annotations"][annotation] == "false"
    named = {each["name"]: each["containerPort"] for each in container(head)["ports"]}
    ports = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080}
    assert named == ports


def test_all_pods_share_the_volume_and_have_room_for_shared_memory_and_metrics() -> None:
    for group in groups(made()):
        spec, ray = group["template"]["spec"], container(group)
        mounts = {each["mountPath"]: each["name"] for each in ray["volumeMounts"]}
        volumes = {each["name"]: each for each in spec["volumes"]}
        claim = volumes[mounts["/shared"]]["persistentVolumeClaim"]
        assert claim == {"claimName": "fsx-claim"}
        memory = volumes[mounts["/dev/shm"]]["emptyDir"]
        assert memory["medium"] == "Memory"
        store = int(group["rayStartParams"]["object-store-memory"])
        assert store < int(memory["sizeLimit"].removesuffix("Gi")) * 2**30
        assert group["rayStartParams"]["metrics-export-port"] == "8080"
        assert {"name": "metrics", "containerPort": 8080} in ray["ports"]


def test_pods_have_time_to_save_the_step_at_hand() -> None:
    for group in groups(made(kuberay__stop_timeout_s=90)):
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] == 90
        (_, _, stop) = container(group)["lifecycle"]["preStop"]["exec"]["command"]
        found = re.search(r"ray stop --grace-period (\d+)", stop)
        assert found and 0 < int(found[1]) < 90


def test_tasks_run_on_the_workers_and_the_object_store_has_its_bytes() -> None:
    head, workers = groups(made(object_store_mb=1024, cpus_per_worker=44))
    assert head["rayStartParams"]["num-cpus"] == "0", "only drivers run on the head"
    given = workers["rayStartParams"]
    assert (given["num-cpus"], given["num-gpus"]) == ("44", "2")
    for group in (head, workers):
        assert group["rayStartParams"]["object-store-memory"] == str(1024 * 2**20)


def test_pods_have_their_priority_and_no_node_is_emptied_under_them() -> None:
    for group in groups(made(kuberay__pod_priority="high")):
        assert group["template"]["spec"]["priorityClassName"] == "high"
        annotations = group["template"]["metadata"]["annotations"]
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"
    assert "priorityClassName" not in str(made())


def test_variables_of_the_profile_are_in_all_pods_and_come_last() -> None:
    given = {"NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "0"}
    for group in groups(made(kuberay__environment=given)):
        variables = {each["name"]: each["value"] for each in container(group)["env"]}
        assert variables.items() >= given.items()
        assert variables["PYTHONPATH"] == IMAGE.app
        assert len(variables) == len(container(group)["env"]), "no name twice"


def test_pods_run_the_image_by_its_digest_under_the_service_account() -> None:
    for group in groups(made(kuberay__service_account="ray-pods")):
        assert container(group)["image"] == IMAGE.reference
        assert group["template"]["spec"]["serviceAccountName"] == "ray-pods"


@pytest.mark.parametrize("reference", ["", "trainer:latest", "trainer@sha256:abc"])
def test_an_image_that_is_not_pinned_is_refused(reference: str) -> None:
    image = IMAGE.model_copy(update={"reference": reference})
    told = reason(lambda: ray_cluster("maze", cluster_config(), image))
    assert "its digest there" in told and "image.backend" in told


def test_kueue_finds_its_labels_on_the_cluster_and_on_both_pod_templates() -> None:
    manifest = made(**QUEUE)
    for place in (manifest, *(group["template"] for group in groups(manifest))):
        labels = place["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "hyperpod-ns-maze-localqueue"
        assert labels["kueue.x-k8s.io/priority-class"] == "training-priority"
    assert "kueue" not in str(made())


def test_redis_keeps_the_heads_state_and_its_password_stays_in_the_secret() -> None:
    options = made(**REDIS)["spec"]["gcsFaultToleranceOptions"]
    secret = {"name": "redis", "key": "password"}
    password = {"valueFrom": {"secretKeyRef": secret}}
    assert options == {"redisAddress": "redis.ariadne:6379", "redisPassword": password}
    assert "gcsFaultToleranceOptions" not in made()["spec"]


def test_the_digest_tells_manifests_apart_and_nothing_else() -> None:
    def digest(**changes: Any) -> str:
        return made(**changes)["metadata"]["annotations"][SPEC_DIGEST]

    assert digest() == digest() == digest(start_timeout_s=100, kuberay__dashboard_url="http://a")
    others = [digest(**options) for options in OPTIONS]
    assert len(set(others)) == len(OPTIONS)


def test_the_profile_fits_six_gpus_and_the_image() -> None:
    config = load_config("hyperpod")
    train, kuberay = config.train, section(config.cluster)
    assert config.cluster.num_workers * config.cluster.gpus_per_worker == train.num_processes == 6
    # SkyRL's two conditions; 32 mazes with mini batches of 16 fulfil neither.
    assert train.mazes_per_step * train.samples_per_maze % train.num_processes == 0
    per_process = train.mini_batch_mazes * train.samples_per_maze / train.num_processes
    assert per_process % train.micro_batch_episodes == 0
    assert train.mazes_per_step % train.mini_batch_mazes == 0
    assert config.model.path.is_relative_to(kuberay.volume.mount_path)
    lock = (ROOT / "containers/trainer/requirements.lock").read_text()
    assert f"\nray=={kuberay.ray_version} " in lock


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("kuberay.namespace", "Ariadne", "cluster.kuberay.namespace: String should match"),
        ("kuberay.namespace", "a/b", "cluster.kuberay.namespace: String should match"),
        ("kuberay.adopt", "1st", "cluster.kuberay.adopt: String should match"),
        ("kuberay.adopt", "a" * 54, "cluster.kuberay.adopt: String should have at most 53"),
        ("kuberay.service_account", "a b", "cluster.kuberay.service_account: String should match"),
        ("kuberay.queue", "-q", "cluster.kuberay.queue: String should match"),
        ("kuberay.volume.mount_path", "shared", "cluster.kuberay.volume.mount_path: String"),
        ("kuberay.volume.mount_path", "/a b", "cluster.kuberay.volume.mount_path: String"),
        ("kuberay.volume.dns_name", "a.b", "come together or not at all"),
        ("kuberay.dashboard_url", "http://{pod}", "cluster.kuberay.dashboard_url: String"),
        ("kuberay.environment", {"A-B": "1"}, "cluster.kuberay.environment.A-B"),
        ("kuberay.head.shared_memory_gb", 400, "shared_memory_gb is taken from memory_gb"),
        ("kuberay.priority", "high", "priority is Kueue's and needs a queue"),
        ("kuberay.api.region", "us-east-1", "eks_cluster and region belong to"),
        ("kuberay.api", {"access": "eks", "eks_cluster": "c"}, "belong to access = 'eks'"),
        ("kuberay.api.context", "c", "kubeconfig and context belong to"),
        ("object_store_mb", 98304, "object_store_mb has to fit into shared_memory_gb"),
        ("backend", "local_ray", "the section kuberay and backend = 'kuberay' belong together"),
        ("num_workers", 2, "train.num_processes is 6 and the cluster has 4 GPUs"),
    ],
)
def test_a_wrong_cluster_is_refused_before_it_costs_anything(
    key: str, value: Any, said: str
) -> None:
    told = reason(lambda: load_config("hyperpod", {f"cluster.{key}": value}))
    assert said in told and told.startswith("configs/hyperpod.toml: ")


@pytest.mark.parametrize("name", ["1maze", "maze-"])
def test_a_name_that_no_ray_cluster_may_have_is_refused(name: str) -> None:
    assert "becomes a RayCluster's" in reason(lambda: load_config("hyperpod", {"name": name}))


def test_a_local_profile_needs_no_section() -> None:
    assert load_config("local").cluster.kuberay is None
    assert "belong together" in reason(lambda: load_config("local", {"cluster.backend": "kuberay"}))


def test_the_crd_is_the_installed_one() -> None:
    folder = Path(schemas.__file__).parent / "crds"
    assert "rayclusters.ray.io" in (folder / "ray.io_rayclusters.yaml").read_text()[:400]
