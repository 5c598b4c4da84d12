"""The Kubernetes objects of a Ray cluster: pure functions from a profile to manifests.

Whatever is not Ray's or Kubernetes' own is taken from the profile. KubeRay adds the start command,
the probes and the head's service.
"""

import re
from typing import Any

from configs.digests import digest_of
from configs.kuberay import KubeRayConfig, PodConfig
from configs.schema import ClusterConfig
from tasks.backends.protocols import Image

Manifest = dict[str, Any]

MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "ariadne"
SPEC_DIGEST = "ariadne/spec-digest"
"""Annotation: of everything in the manifest but itself."""
REMOTE_ENDPOINT = "access.sagemaker.amazonaws.com/enabled"
NODE_HEALTH = "sagemaker.amazonaws.com/node-health-status"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
CLUSTER_LABEL = "ray.io/cluster"
"""KubeRay's, on every pod."""
GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"

_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
_METRICS_PORT = 8080
_PINNED = re.compile(r"[a-z0-9][\w./:-]*@sha256:[0-9a-f]{64}")


def ray_cluster(name: str, config: ClusterConfig, image: Image) -> Manifest:
    """The RayCluster of a profile.

    Raises:
        ValueError: the image is not in a registry, or not named by its digest there.
    """
    kuberay = section(config)
    check_pinned(image)
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": name,
            "namespace": kuberay.namespace,
            "labels": _labels(name, kuberay),
            "annotations": {REMOTE_ENDPOINT: str(kuberay.remote_endpoint).lower()},
        },
        "spec": {
            "rayVersion": kuberay.ray_version,
            "headGroupSpec": _head(name, config, image),
            "workerGroupSpecs": [_workers(name, config, image)],
            **_fault_tolerance(kuberay),
        },
    }
    manifest["metadata"]["annotations"][SPEC_DIGEST] = digest_of(manifest)
    return manifest


def is_ours(found: Manifest) -> bool:
    """Whether an object that is there carries our label."""
    return found["metadata"].get("labels", {}).get(MANAGED_BY) == OURS


def is_made_of(found: Manifest, manifest: Manifest) -> bool:
    """Whether a RayCluster that is there is ours and was made of this very manifest."""
    digest = found["metadata"].get("annotations", {}).get(SPEC_DIGEST)
    return is_ours(found) and digest == manifest["metadata"]["annotations"][SPEC_DIGEST]


def check_pinned(image: Image) -> None:
    """Refuse an image that pods cannot run, or that may be another one tomorrow."""
    if not _PINNED.fullmatch(image.reference):
        raise ValueError(
            f"pods cannot run the image {image.reference or image.digest[:12]!r}: it needs a "
            "registry and its digest there, as in registry/name@sha256:...; choose an "
            "image.backend that pushes"
        )


def section(config: ClusterConfig) -> KubeRayConfig:
    """The schema admits no `kuberay` backend without it."""
    assert config.kuberay is not None
    return config.kuberay


def _labels(name: str, kuberay: KubeRayConfig) -> dict[str, str]:
    """Kueue wants its labels on the cluster and on both pod templates."""
    queue = {"kueue.x-k8s.io/queue-name": kuberay.queue} if kuberay.queue else {}
    priority = {"kueue.x-k8s.io/priority-class": kuberay.priority} if kuberay.priority else {}
    return {MANAGED_BY: OURS, "app.kubernetes.io/instance": name, **queue, **priority}


def _head(name: str, config: ClusterConfig, image: Image) -> Manifest:
    kuberay = section(config)
    head = kuberay.head
    resources = {"cpu": str(head.cpus), "memory": f"{head.memory_gb}Gi"}
    container = _container("ray-head", kuberay, head, image, resources, {})
    container["ports"] = [
        *({"name": port, "containerPort": number} for port, number in _PORTS.items()),
        *container["ports"],
    ]
    return {
        "rayStartParams": _start_params(config)
        | {
            # Without it the endpoint operator cannot show the dashboard.
            "dashboard-host": "0.0.0.0",
            # Drivers run here; tasks, SkyRL's trainer among them, belong on the workers.
            "num-cpus": "0",
        },
        "template": _pod(name, kuberay, head, container),
    }


def _workers(name: str, config: ClusterConfig, image: Image) -> Manifest:
    kuberay = section(config)
    worker = kuberay.worker
    resources = {
        "cpu": str(config.cpus_per_worker),
        "memory": f"{worker.memory_gb}Gi",
        GPU: str(config.gpus_per_worker),
    }
    environment = {
        "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    if worker.efa_interfaces:
        resources[EFA] = str(worker.efa_interfaces)
        environment |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}
    container = _container("ray-worker", kuberay, worker, image, resources, environment)
    return {
        "groupName": "gpu",
        "replicas": config.num_workers,
        "minReplicas": config.num_workers,
        "maxReplicas": config.num_workers,
        "rayStartParams": _start_params(config)
        | {
            "num-cpus": str(config.cpus_per_worker),
            "num-gpus": str(config.gpus_per_worker),
        },
        "template": _pod(name, kuberay, worker, container),
    }


def _start_params(config: ClusterConfig) -> dict[str, str]:
    return {
        "object-store-memory": str(config.object_store_mb * 2**20),
        "metrics-export-port": str(_METRICS_PORT),
    }


def _container(
    name: str,
    kuberay: KubeRayConfig,
    pod: PodConfig,
    image: Image,
    resources: dict[str, str],
    environment: dict[str, str],
) -> Manifest:
    common = {
        "PYTHONPATH": image.app,
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    variables = common | environment | kuberay.environment
    # The raylet ends a little before the pod, so that it is not killed.
    stop = f"ray stop --grace-period {kuberay.stop_timeout_s - 5}"
    return {
        "name": name,
        "image": image.reference,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "ports": [{"name": "metrics", "containerPort": _METRICS_PORT}],
        "resources": {"requests": resources, "limits": resources},
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", stop]}}},
        "volumeMounts": [
            {"name": "shared", "mountPath": kuberay.volume.mount_path},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "ray-logs", "mountPath": "/tmp/ray"},
        ],
    }


def _pod(name: str, kuberay: KubeRayConfig, pod: PodConfig, container: Manifest) -> Manifest:
    healthy = {NODE_HEALTH: "Schedulable"} if pod.only_healthy else {}
    priority = {"priorityClassName": kuberay.pod_priority} if kuberay.pod_priority else {}
    memory = {"medium": "Memory", "sizeLimit": f"{pod.shared_memory_gb}Gi"}
    return {
        "metadata": {
            "labels": _labels(name, kuberay),
            # A training step loses its work with any one pod, so no node is emptied to save money.
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "serviceAccountName": kuberay.service_account,
            **priority,
            "nodeSelector": {INSTANCE_TYPE: pod.instance_type, **healthy},
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "terminationGracePeriodSeconds": kuberay.stop_timeout_s,
            "containers": [container],
            "volumes": [
                {
                    "name": "shared",
                    "persistentVolumeClaim": {"claimName": kuberay.volume.claim},
                },
                {"name": "shared-memory", "emptyDir": memory},
                {"name": "ray-logs", "emptyDir": {}},
            ],
        },
    }


def _fault_tolerance(kuberay: KubeRayConfig) -> Manifest:
    if kuberay.redis is None:
        return {}
    secret = {"name": kuberay.redis.password_secret, "key": "password"}
    options = {
        "redisAddress": kuberay.redis.address,
        "redisPassword": {"valueFrom": {"secretKeyRef": secret}},
    }
    return {"gcsFaultToleranceOptions": options}


def persistent_volume(kuberay: KubeRayConfig) -> Manifest:
    """The namespace's own view of the file system: one volume binds one claim."""
    volume = kuberay.volume
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"{kuberay.namespace}-{volume.claim}",
            "labels": {MANAGED_BY: OURS},
        },
        "spec": {
            "capacity": {"storage": f"{volume.capacity_gb}Gi"},
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteMany"],
            "mountOptions": ["flock"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": kuberay.namespace, "name": volume.claim},
            "csi": {
                "driver": "fsx.csi.aws.com",
                "volumeHandle": volume.file_system_id,
                "volumeAttributes": {
                    "dnsname": volume.dns_name,
                    "mountname": volume.mount_name,
                },
            },
        },
    }


def volume_claim(kuberay: KubeRayConfig) -> Manifest:
    """The claim through which pods mount the file system."""
    volume = kuberay.volume
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": volume.claim,
            "namespace": kuberay.namespace,
            "labels": {MANAGED_BY: OURS},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": f"{kuberay.namespace}-{volume.claim}",
            "resources": {"requests": {"storage": f"{volume.capacity_gb}Gi"}},
        },
    }
