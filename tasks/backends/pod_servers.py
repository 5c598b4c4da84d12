"""vLLM servers as containers of the door's pod, a GPU each, at sockets that only the pod has."""

from pathlib import Path

from configs.hosting import ServingPodConfig
from configs.kuberay import KubeRayConfig
from configs.serving import Serving
from tasks.backends import serving_manifest
from tasks.backends.door import server_arguments
from tasks.backends.protocols import HostedModel
from tasks.backends.ray_manifest import GPU, Manifest
from tasks.backends.serving_manifest import container

_LOOK_S = 10


class PodServers:
    """Implements `Servers`: they come and go with the pod."""

    def __init__(self, pod: ServingPodConfig, kuberay: KubeRayConfig) -> None:
        self._pod = pod
        self._kuberay = kuberay
        self.machine = pod

    def addresses(self, model: HostedModel) -> tuple[Path, ...]:
        """Inside of the pod: the door and the servers have their folder in common."""
        numbers = range(1, model.num_replicas + 1)
        return tuple(serving_manifest.SOCKETS / f"model-server-{n}.sock" for n in numbers)

    def containers(self, model: HostedModel, serving: Path) -> list[Manifest]:
        places = self.addresses(model)
        return [_server(self._pod, self._kuberay, model, serving, each) for each in places]

    def planned(self, model: HostedModel) -> list[Manifest]:
        return []

    def have(self, model: HostedModel) -> None:
        """They come with the pod."""

    def keep_only(self, wish: Serving) -> None:
        """The others go with their pod."""


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
    return container(name, pod, kuberay, model, arguments) | {
        "resources": {"requests": resources, "limits": resources},
        "startupProbe": probe
        | {"periodSeconds": _LOOK_S, "failureThreshold": model.timeout_s // _LOOK_S + 1},
        "livenessProbe": probe | {"periodSeconds": 30, "failureThreshold": 4},
    }
