"""The parts of a profile that say how model servers stand on Kubernetes."""

from pydantic import Field

from configs.kuberay import HeadConfig, LabelName, ObjectName, PodConfig, ServiceName
from configs.section import Section

_URL = r"^https?://([^\s{}]|\{service\}|\{namespace\}|\{port\})+$"


class ServingPodConfig(PodConfig):
    """One pod: the door, and behind it host.num_replicas model servers with a GPU each.

    Namespace, access, service account and volume are those of cluster.kuberay. The servers load
    any folder for whoever reaches them, so they listen at sockets in the pod only; the pod asks for
    a machine with a GPU for each. All numbers of PodConfig are of one server. With Ray Serve the
    servers are workers of a Ray cluster instead, and the pod is the door's alone.
    """

    service: ServiceName = "maze-solver"
    """Name of the Deployment and of the Service through which users ask."""
    cpus: int = Field(ge=1, le=512)
    """Of one server."""
    key_secret: ObjectName
    """Secret in the namespace with the key `key`: what clients send as their API key. The control
    plane has the same in VLLM_API_KEY."""
    url: str = Field("http://{service}.{namespace}.svc:{port}", pattern=_URL)
    """Where users and this control plane reach the Service."""
    pod_priority: ObjectName | None = None
    """Kubernetes' PriorityClass of the pod."""
    queue: LabelName | None = None
    """Kueue's LocalQueue, where the namespace has quotas."""

    def url_of(self, service: str, namespace: str, port: int) -> str:
        """Where the door behind the Service answers."""
        return _filled(self.url, service, namespace, port)


class RayServeConfig(Section):
    """Ray Serve LLM on a RayService of KubeRay: a head, and for each server a worker with a GPU.

    The door is a pod of its own on the head's kind of machine. The numbers of host.pod are those of
    one worker. Adapters are read from the object store of the profile.
    """

    image: str = Field(pattern=r"^[a-z0-9][\w./:-]*@sha256:[0-9a-f]{64}$", max_length=400)
    """Of containers/server/Dockerfile, by its digest in a registry that the pods reach."""
    ray_version: str = Field("2.60.0", pattern=r"^\d+\.\d+\.\d+$")
    """The Ray in the image."""
    head: HeadConfig
    serve_url: str = Field("http://{service}-serve-svc.{namespace}.svc:{port}", pattern=_URL)
    """Where the door reaches the applications: KubeRay's service for them."""
    dashboard_url: str = Field("http://{service}-head-svc.{namespace}.svc:{port}", pattern=_URL)
    """Where the door reaches the head's dashboard."""

    def serve_at(self, service: str, namespace: str, port: int) -> str:
        return _filled(self.serve_url, service, namespace, port)

    def dashboard_at(self, service: str, namespace: str, port: int) -> str:
        return _filled(self.dashboard_url, service, namespace, port)


def _filled(url: str, service: str, namespace: str, port: int) -> str:
    parts = {"{service}": service, "{namespace}": namespace, "{port}": str(port)}
    for placeholder, part in parts.items():
        url = url.replace(placeholder, part)
    return url
