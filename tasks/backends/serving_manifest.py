"""The Kubernetes objects of the door: pure functions from a profile to manifests.

Only the door is reachable by users, and only by who has the key; which adapter is served is no part
of the manifest but of the serving file on the shared volume, so that a new one restarts nothing.
The model servers may be containers of the door's pod (pod_servers.py) or stand elsewhere.
"""

from collections.abc import Sequence
from pathlib import Path

from configs.digests import digest_of
from configs.hosting import ServingPodConfig
from configs.kuberay import KubeRayConfig, PodConfig
from tasks.backends.protocols import HostedModel
from tasks.backends.ray_manifest import (
    GPU,
    INSTANCE_TYPE,
    MANAGED_BY,
    NODE_HEALTH,
    OURS,
    SPEC_DIGEST,
    Manifest,
    check_pinned,
)

APP = "app.kubernetes.io/name"
SOCKETS = Path("/run/ariadne")
"""What the containers of the pod have in common."""
_FAREWELL_S = 60
"""For answers under way when a pod ends."""


def deployment(
    pod: ServingPodConfig,
    kuberay: KubeRayConfig,
    model: HostedModel,
    serving: Path,
    machine: PodConfig,
    servers: Sequence[Manifest],
) -> Manifest:
    """The Deployment whose pod serves what the file `serving` says, on such a machine.

    Raises:
        ValueError: the image is not in a registry, or not named by its digest there.
    """
    check_pinned(model.image)
    containers = [_door(pod, kuberay, model, serving), *servers]
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(pod, kuberay),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {APP: pod.service}},
            # The pod that serves goes once the next one is proven, and not before.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "progressDeadlineSeconds": model.timeout_s,
            "template": _template(pod, kuberay, machine, containers),
        },
    }
    manifest["metadata"]["labels"] |= queue_label(pod)
    manifest["metadata"]["annotations"] = {SPEC_DIGEST: digest_of(manifest)}
    return manifest


def services(pod: ServingPodConfig, kuberay: KubeRayConfig, port: int) -> list[Manifest]:
    """One address for users, and one that also leads to a pod that is not proven yet: through it
    the control plane learns why."""
    spec = {
        "type": "ClusterIP",
        "selector": {APP: pod.service},
        "ports": [{"name": "http", "port": port, "targetPort": "door"}],
    }
    users, unproven = _metadata(pod, kuberay), _metadata(pod, kuberay)
    unproven |= {"name": unproven_name(pod)}
    head = {"apiVersion": "v1", "kind": "Service"}
    return [
        head | {"metadata": users, "spec": spec},
        head | {"metadata": unproven, "spec": spec | {"publishNotReadyAddresses": True}},
    ]


def unproven_name(pod: ServingPodConfig) -> str:
    return f"{pod.service}-unproven"


def _metadata(pod: ServingPodConfig, kuberay: KubeRayConfig) -> Manifest:
    labels = {MANAGED_BY: OURS, APP: pod.service}
    return {"name": pod.service, "namespace": kuberay.namespace, "labels": labels}


def queue_label(pod: ServingPodConfig) -> dict[str, str]:
    """Kueue wants its label on the Deployment and on the pods."""
    return {"kueue.x-k8s.io/queue-name": pod.queue} if pod.queue else {}


def _template(
    pod: ServingPodConfig,
    kuberay: KubeRayConfig,
    machine: PodConfig,
    containers: Sequence[Manifest],
) -> Manifest:
    labels = {MANAGED_BY: OURS, APP: pod.service, **queue_label(pod)}
    num_servers = len(containers) - 1
    memory = {"medium": "Memory", "sizeLimit": f"{pod.shared_memory_gb * max(1, num_servers)}Gi"}
    volumes = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": kuberay.volume.claim}},
        {"name": "shared-memory", "emptyDir": memory},
        {"name": "sockets", "emptyDir": {}},
    ]
    return pod_template(
        pod, kuberay, machine, labels, {"containers": containers, "volumes": volumes}
    )


def pod_template(
    pod: ServingPodConfig,
    kuberay: KubeRayConfig,
    machine: PodConfig,
    labels: dict[str, str],
    spec: Manifest,
) -> Manifest:
    """A pod that serves, on such a machine."""
    healthy = {NODE_HEALTH: "Schedulable"} if machine.only_healthy else {}
    priority = {"priorityClassName": pod.pod_priority} if pod.pod_priority else {}
    return {
        "metadata": {
            "labels": labels,
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "serviceAccountName": kuberay.service_account,
            **priority,
            "nodeSelector": {INSTANCE_TYPE: machine.instance_type, **healthy},
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "terminationGracePeriodSeconds": _FAREWELL_S,
            **spec,
        },
    }


def _door(
    pod: ServingPodConfig, kuberay: KubeRayConfig, model: HostedModel, serving: Path
) -> Manifest:
    """Ready, and so reachable by the Service, once a server is proven."""
    resources = {"cpu": "1", "memory": "2Gi"}
    arguments = ("containers.server.door", "--serving", str(serving), "--open")
    made = container("door", pod, kuberay, model, (*arguments, "--port", str(model.port)))
    return made | {
        "ports": [{"name": "door", "containerPort": model.port}],
        "resources": {"requests": resources, "limits": resources},
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "door"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {"tcpSocket": {"port": "door"}, "initialDelaySeconds": 30},
    }


def container(
    name: str,
    pod: ServingPodConfig,
    kuberay: KubeRayConfig,
    model: HostedModel,
    arguments: tuple[str, ...],
) -> Manifest:
    """Of the door's pod, from the trainer's image."""
    key = {"secretKeyRef": {"name": pod.key_secret, "key": "key"}}
    variables = {
        "PYTHONPATH": model.image.app,
        # Makes a folder with another base another server, to be started anew.
        "ARIADNE_SERVES": model.base_digest,
    } | kuberay.environment
    return {
        "name": name,
        "image": model.image.reference,
        "imagePullPolicy": "IfNotPresent",
        "command": [model.image.python, "-m", *arguments],
        "workingDir": model.image.app,
        "env": [
            *({"name": name, "value": value} for name, value in variables.items()),
            {"name": "VLLM_API_KEY", "valueFrom": key},
        ],
        "volumeMounts": [
            {"name": "shared", "mountPath": kuberay.volume.mount_path, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "sockets", "mountPath": str(SOCKETS)},
        ],
    }
