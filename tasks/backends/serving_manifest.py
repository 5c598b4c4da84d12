"""The Kubernetes objects of a model server: pure functions from a profile to manifests.

One pod holds the door and all model servers. Only the door is reachable from outside of it, and
only by who has the key; which adapter is served is no part of the manifest but of the serving file
on the shared volume, so that a new one restarts nothing.
"""

from pathlib import Path

from configs.digests import digest_of
from configs.hosting import ServingPodConfig
from configs.kuberay import KubeRayConfig
from tasks.backends.door import server_arguments
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
_SOCKETS = Path("/run/ariadne")
_LOOK_S = 10
_FAREWELL_S = 60
"""For answers under way when a pod ends."""


def deployment(
    pod: ServingPodConfig, kuberay: KubeRayConfig, model: HostedModel, serving: Path
) -> Manifest:
    """The Deployment whose pod serves what the file `serving` says.

    Raises:
        ValueError: the image is not in a registry, or not named by its digest there.
    """
    check_pinned(model.image)
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
            "template": _template(pod, kuberay, model, serving),
        },
    }
    manifest["metadata"]["labels"] |= _queue(pod)
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


def server_sockets(model: HostedModel) -> list[Path]:
    """Inside of the pod: the door and the servers have their folder in common."""
    return [_SOCKETS / f"model-server-{n}.sock" for n in range(1, model.num_replicas + 1)]


def _metadata(pod: ServingPodConfig, kuberay: KubeRayConfig) -> Manifest:
    labels = {MANAGED_BY: OURS, APP: pod.service}
    return {"name": pod.service, "namespace": kuberay.namespace, "labels": labels}


def _queue(pod: ServingPodConfig) -> dict[str, str]:
    """Kueue wants its label on the Deployment and on the pods."""
    return {"kueue.x-k8s.io/queue-name": pod.queue} if pod.queue else {}


def _template(
    pod: ServingPodConfig, kuberay: KubeRayConfig, model: HostedModel, serving: Path
) -> Manifest:
    healthy = {NODE_HEALTH: "Schedulable"} if pod.only_healthy else {}
    priority = {"priorityClassName": pod.pod_priority} if pod.pod_priority else {}
    memory = {"medium": "Memory", "sizeLimit": f"{pod.shared_memory_gb * model.num_replicas}Gi"}
    servers = [_server(pod, kuberay, model, serving, each) for each in server_sockets(model)]
    return {
        "metadata": {
            "labels": {MANAGED_BY: OURS, APP: pod.service, **_queue(pod)},
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "serviceAccountName": kuberay.service_account,
            **priority,
            "nodeSelector": {INSTANCE_TYPE: pod.instance_type, **healthy},
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "terminationGracePeriodSeconds": _FAREWELL_S,
            "containers": [_door(pod, kuberay, model, serving), *servers],
            "volumes": [
                {"name": "shared", "persistentVolumeClaim": {"claimName": kuberay.volume.claim}},
                {"name": "shared-memory", "emptyDir": memory},
                {"name": "sockets", "emptyDir": {}},
            ],
        },
    }


def _door(
    pod: ServingPodConfig, kuberay: KubeRayConfig, model: HostedModel, serving: Path
) -> Manifest:
    """Ready, and so reachable by the Service, once a server is proven."""
    resources = {"cpu": "1", "memory": "2Gi"}
    arguments = ("containers.server.door", "--serving", str(serving), "--open")
    container = _container("door", pod, kuberay, model, (*arguments, "--port", str(model.port)))
    return container | {
        "ports": [{"name": "door", "containerPort": model.port}],
        "resources": {"requests": resources, "limits": resources},
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "door"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {"tcpSocket": {"port": "door"}, "initialDelaySeconds": 30},
    }


def _server(
    pod: ServingPodConfig, kuberay: KubeRayConfig, model: HostedModel, serving: Path, socket: Path
) -> Manifest:
    gpu = {GPU: "1"} if model.device == "cuda" else {}
    resources = {"cpu": str(pod.cpus), "memory": f"{pod.memory_gb}Gi", **gpu}
    arguments = ("containers.server.serve", "--serving", str(serving), "--socket", str(socket))
    arguments += server_arguments(model)
    # The kubelet asks from outside of the pod, where no socket leads.
    asks = (
        f"import httpx; way = httpx.HTTPTransport(uds='{socket}'); "
        "httpx.Client(transport=way).get('http://server/health', timeout=5).raise_for_status()"
    )
    probe = {"exec": {"command": [model.image.python, "-c", asks]}, "timeoutSeconds": 10}
    name = socket.stem.removeprefix("model-")
    return _container(name, pod, kuberay, model, arguments) | {
        "resources": {"requests": resources, "limits": resources},
        "startupProbe": probe
        | {"periodSeconds": _LOOK_S, "failureThreshold": model.timeout_s // _LOOK_S + 1},
        "livenessProbe": probe | {"periodSeconds": 30, "failureThreshold": 4},
    }


def _container(
    name: str,
    pod: ServingPodConfig,
    kuberay: KubeRayConfig,
    model: HostedModel,
    arguments: tuple[str, ...],
) -> Manifest:
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
            {"name": "sockets", "mountPath": str(_SOCKETS)},
        ],
    }
