"""The part of a profile that says how model servers stand on Kubernetes."""

from pydantic import Field

from configs.kuberay import LabelName, ObjectName, PodConfig, ServiceName


class ServingPodConfig(PodConfig):
    """One pod: the door, and behind it host.num_replicas model servers with a GPU each.

    Namespace, access, service account and volume are those of cluster.kuberay. The servers load
    any folder for whoever reaches them, so they listen at sockets in the pod only; the pod asks for
    a machine with a GPU for each. All numbers of PodConfig are of one server.
    """

    service: ServiceName = "maze-solver"
    """Name of the Deployment and of the Service through which users ask."""
    cpus: int = Field(ge=1, le=512)
    """Of one server."""
    key_secret: ObjectName
    """Secret in the namespace with the key `key`: what clients send as their API key. The control
    plane has the same in VLLM_API_KEY."""
    url: str = Field(
        "http://{service}.{namespace}.svc:{port}",
        pattern=r"^https?://([^\s{}]|\{service\}|\{namespace\}|\{port\})+$",
    )
    """Where users and this control plane reach the Service."""
    pod_priority: ObjectName | None = None
    """Kubernetes' PriorityClass of the pod."""
    queue: LabelName | None = None
    """Kueue's LocalQueue, where the namespace has quotas."""

    def url_of(self, service: str, namespace: str, port: int) -> str:
        """Where the door behind the Service answers."""
        parts = {"{service}": service, "{namespace}": namespace, "{port}": str(port)}
        url = self.url
        for placeholder, part in parts.items():
            url = url.replace(placeholder, part)
        return url
