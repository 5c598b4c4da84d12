"""The RayService of Ray Serve LLM: a pure function from a profile to a manifest.

Each model server is an application of its own, so that the door can prove each. They read adapters
from the object store by their digest (tasks/publication.py keeps them so). What is served is no
part of the manifest, but the base is: another base or image is another RayService.
"""

import json

from configs.digests import digest_of
from configs.engine import engine_options
from configs.hosting import RayServeConfig, ServingPodConfig
from configs.kuberay import KubeRayConfig, PodConfig
from configs.serving import BASE_NAME
from tasks.backends.protocols import HostedModel
from tasks.backends.ray_manifest import GPU, MANAGED_BY, OURS, Manifest
from tasks.backends.serving_manifest import APP, pod_template, queue_label

SERVE_PORT = 8000
DASHBOARD_PORT = 8265
_PORTS = {"gcs-server": 6379, "dashboard": DASHBOARD_PORT}
_OF_ALL = {"metrics": 8080, "serve": SERVE_PORT}
_MAX_NUM_SEQS = 64
_MAX_ADAPTERS = 3
"""The champion, the one before, and the one to come."""
_OBJECT_STORE = 2**30
"""In bytes. Requests and answers go through it, weights do not."""


def ray_service(
    pod: ServingPodConfig,
    ray: RayServeConfig,
    kuberay: KubeRayConfig,
    model: HostedModel,
    adapters_url: str,
) -> Manifest:
    """The RayService whose applications serve the base and what lies below `adapters_url`.

    Its name ends with the digest of what it is made of.
    """
    bare = _spec(pod, ray, kuberay, model, adapters_url, {})
    name = f"{pod.service}-{digest_of([bare, model.base_digest])[:8]}"
    labels = {MANAGED_BY: OURS, APP: name, **queue_label(pod)}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": name, "namespace": kuberay.namespace, "labels": labels},
        "spec": _spec(pod, ray, kuberay, model, adapters_url, labels),
    }


def app_names(model: HostedModel) -> list[str]:
    """Of the applications, one for each model server."""
    return [f"model-server-{n}" for n in range(1, model.num_replicas + 1)]


def _spec(
    pod: ServingPodConfig,
    ray: RayServeConfig,
    kuberay: KubeRayConfig,
    model: HostedModel,
    adapters_url: str,
    labels: dict[str, str],
) -> Manifest:
    head = {"dashboard-host": "0.0.0.0", "num-cpus": "0"}
    workers = {
        "groupName": "servers",
        "replicas": model.num_replicas,
        "minReplicas": model.num_replicas,
        "maxReplicas": model.num_replicas,
        "rayStartParams": _start_params() | _has(pod, model),
        "template": _pod(pod, ray, kuberay, model, labels, is_head=False),
    }
    return {
        "serveConfigV2": json.dumps(_serve_config(model, adapters_url), indent=1),
        # Another spec is another RayService: this one makes no second cluster of its own.
        "upgradeStrategy": {"type": "None"},
        "rayClusterConfig": {
            "rayVersion": ray.ray_version,
            "headGroupSpec": {
                "rayStartParams": _start_params() | head,
                "template": _pod(pod, ray, kuberay, model, labels, is_head=True),
            },
            "workerGroupSpecs": [workers],
        },
    }


def _serve_config(model: HostedModel, adapters_url: str) -> Manifest:
    return {
        "http_options": {"host": "0.0.0.0", "port": SERVE_PORT},
        "applications": [
            {
                "name": name,
                "route_prefix": f"/{name}",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {
                    "llm_configs": [_llm(model, adapters_url)],
                    "ingress_deployment_config": {"num_replicas": 1, "autoscaling_config": None},
                },
            }
            for name in app_names(model)
        ],
    }


def _llm(model: HostedModel, adapters_url: str) -> Manifest:
    return {
        "model_loading_config": {"model_id": BASE_NAME, "model_source": str(model.base)},
        "accelerator_config": {"kind": "gpu" if model.device == "cuda" else "cpu"},
        "lora_config": {
            "dynamic_lora_loading_path": adapters_url,
            "max_num_adapters_per_replica": _MAX_ADAPTERS,
        },
        "deployment_config": {"num_replicas": 1},
        "engine_kwargs": engine_options(
            device=model.device,
            dtype=model.dtype,
            max_model_len=model.max_model_len,
            max_num_seqs=_MAX_NUM_SEQS,
            max_images=model.mazes.max_turns,
            lora_rank=model.lora_rank,
            max_adapters=_MAX_ADAPTERS,
        ),
    }


def _start_params() -> dict[str, str]:
    return {
        "object-store-memory": str(_OBJECT_STORE),
        "metrics-export-port": str(_OF_ALL["metrics"]),
    }


def _has(pod: ServingPodConfig, model: HostedModel) -> dict[str, str]:
    num_gpus = "1" if model.device == "cuda" else "0"
    return {"num-cpus": str(pod.cpus), "num-gpus": num_gpus}


def _pod(
    pod: ServingPodConfig,
    ray: RayServeConfig,
    kuberay: KubeRayConfig,
    model: HostedModel,
    labels: dict[str, str],
    *,
    is_head: bool,
) -> Manifest:
    machine: PodConfig = ray.head if is_head else pod
    gpu = {} if is_head or model.device == "cpu" else {GPU: "1"}
    cpus = ray.head.cpus if is_head else pod.cpus
    resources = {"cpu": str(cpus), "memory": f"{machine.memory_gb}Gi", **gpu}
    ports = _PORTS | _OF_ALL if is_head else _OF_ALL
    memory = {"medium": "Memory", "sizeLimit": f"{machine.shared_memory_gb}Gi"}
    container = {
        "name": "ray-head" if is_head else "ray-worker",
        "image": ray.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": key, "value": value} for key, value in _environment(kuberay).items()],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": [
            {"name": "shared", "mountPath": kuberay.volume.mount_path, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            {"name": "ray-logs", "mountPath": "/tmp/ray"},
        ],
    }
    volumes = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": kuberay.volume.claim}},
        {"name": "shared-memory", "emptyDir": memory},
        {"name": "ray-logs", "emptyDir": {}},
    ]
    spec = {"containers": [container], "volumes": volumes}
    return pod_template(pod, kuberay, machine, labels, spec)


def _environment(kuberay: KubeRayConfig) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
    } | kuberay.environment
