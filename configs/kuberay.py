"""The part of a profile that says how a RayCluster stands on Kubernetes, HyperPod's for one."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from configs.section import Section

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"

LabelName = Annotated[str, Field(pattern=f"^{_LABEL}$", max_length=63)]
"""A DNS label, as namespaces and groups have."""
ServiceName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=53)]
"""What a RayCluster may be called: KubeRay names services after it."""
ObjectName = Annotated[str, Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253)]
"""A DNS subdomain, as most objects have."""
LabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
MountPath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$", max_length=255)]
"""No part of it begins with a dot, so none leads elsewhere."""
_TAKEN = (Path("/dev"), Path("/proc"), Path("/sys"), Path("/tmp/ray"))
"""Ray's and the kernel's."""


class ApiConfig(Section):
    """How the Kubernetes API is reached."""

    access: Literal["in_cluster", "kubeconfig", "eks"] = "in_cluster"
    """`in_cluster`: the service account of the pod that asks. `kubeconfig`: a file. `eks`: AWS
    credentials, from which tokens are made, without a file and without the aws command."""
    kubeconfig: Path | None = None
    """Its path; none: KUBECONFIG or the home folder's."""
    context: str = ""
    """Context of the kubeconfig; empty: its current one."""
    eks_cluster: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,99})?$")
    """Its name; on HyperPod that of the orchestrator, not of the HyperPod cluster."""
    region: str = Field("", pattern=r"^([a-z]{2}(-[a-z]+)+-[0-9])?$")
    """Of the EKS cluster."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {bool(self.eks_cluster), bool(self.region)}
        if given != {self.access == "eks"}:
            raise ValueError("eks_cluster and region belong to access = 'eks', both of them")
        if self.access != "kubeconfig" and (self.kubeconfig or self.context):
            raise ValueError("kubeconfig and context belong to access = 'kubeconfig'")
        return self


class PodConfig(Section):
    """One kind of Ray node; all numbers are of one pod."""

    instance_type: LabelValue
    """Kind of machine, such as ml.g7e.12xlarge."""
    memory_gb: int = Field(ge=1, le=32_768)
    """In GiB, the shared memory included: a pod that takes more is killed."""
    shared_memory_gb: int = Field(ge=1, le=16_384)
    """Room in /dev/shm, in GiB: Ray's object store and what NCCL and vLLM exchange."""
    only_healthy: bool = True
    """Only on nodes that HyperPod calls schedulable; its label has to be on them."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shared_memory_gb >= self.memory_gb:
            raise ValueError("shared_memory_gb is taken from memory_gb: give less")
        return self


class HeadConfig(PodConfig):
    cpus: int = Field(ge=1, le=512)
    """For the drivers of jobs and Ray's own services; tasks run on the workers."""


class WorkerConfig(PodConfig):
    efa_interfaces: int = Field(0, ge=0, le=64)
    """Elastic Fabric Adapters, the network between GPUs of several nodes; 0 uses TCP."""


class VolumeConfig(Section):
    """The file system that all nodes and the control plane share."""

    claim: LabelName = "fsx-claim"
    """PersistentVolumeClaim in the namespace."""
    mount_path: MountPath
    """Where it is in every pod; the paths of the run and of the base model lie below it."""
    file_system_id: str = Field("", pattern=r"^(fs-[0-9a-f]{8,40})?$")
    """Of FSx for Lustre: the claim is made where it is missing. Empty: the claim is there."""
    dns_name: str = Field("", pattern=r"^([A-Za-z0-9.-]{1,253})?$")
    """Of the file system, as FSx tells it."""
    mount_name: str = Field("", pattern=r"^([a-z0-9]{1,8})?$")
    """Of the file system, as FSx tells it."""
    capacity_gb: int = Field(1200, ge=1, le=100_000_000)
    """Size of the file system, in GiB."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(Path(self.mount_path).is_relative_to(taken) for taken in _TAKEN):
            raise ValueError(f"mount_path {self.mount_path} is taken in every pod: give another")
        if len({bool(self.file_system_id), bool(self.dns_name), bool(self.mount_name)}) == 2:
            raise ValueError("file_system_id, dns_name and mount_name come together or not at all")
        return self


class RedisConfig(Section):
    """Where the head keeps its state, so that workers outlive a head that is started again."""

    address: str = Field(pattern=r"^[A-Za-z0-9.-]+:[0-9]{1,5}$")
    """Host and port."""
    password_secret: ObjectName
    """Secret in the namespace with the key `password`."""


class KubeRayConfig(Section):
    """A RayCluster that KubeRay runs."""

    namespace: LabelName
    """Where the RayCluster, its pods and the claim live."""
    api: ApiConfig = ApiConfig()
    """How the control plane reaches Kubernetes."""
    adopt: ServiceName | None = None
    """A RayCluster that somebody else has made, in SageMaker Studio for one. It is used if it has
    this profile's image, Ray, GPUs and volume, and neither changed nor deleted."""
    ray_version: str = Field(pattern=r"^\d+\.\d+\.\d+$")
    """The Ray in the image: KubeRay sets pods up by it."""
    service_account: ObjectName = "default"
    """Of all pods; EKS Pod Identity gives its AWS rights to them."""
    queue: LabelName | None = None
    """Kueue's LocalQueue; on HyperPod with task governance hyperpod-ns-<team>-localqueue."""
    priority: LabelValue | None = None
    """Kueue's WorkloadPriorityClass, with a queue."""
    pod_priority: ObjectName | None = None
    """Kubernetes' PriorityClass of all pods."""
    remote_endpoint: bool = True
    """HyperPod's endpoint operator gives the dashboard an address for people."""
    dashboard_url: str = Field(
        "http://{service}.{namespace}.svc:{port}",
        pattern=r"^(https?://([^\s{}]|\{service\}|\{namespace\}|\{port\})+|sagemaker_ray://)$",
    )
    """Where this control plane reaches the head. Outside of the cluster: a gateway's address, or
    `sagemaker_ray://` for the address and session that HyperPod's endpoint operator gives."""
    stop_timeout_s: int = Field(120, ge=10, le=3600)
    """From the notice of its end to a pod's end: time to save the step at hand."""
    environment: dict[VariableName, str] = Field(default_factory=dict)
    """Variables of all pods. They are in the manifest for all to read: never a secret."""
    head: HeadConfig
    """The pod with Ray's own services, where the drivers of jobs run; no GPU."""
    worker: WorkerConfig
    """The pods with GPUs; cluster.num_workers says how many."""
    volume: VolumeConfig
    """The storage of runs, models and adapters."""
    redis: RedisConfig | None = None
    """None: the head's state ends with the head."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.priority and not self.queue:
            raise ValueError("priority is Kueue's and needs a queue")
        if self.by_connection and not self.remote_endpoint:
            raise ValueError("dashboard_url = 'sagemaker_ray://' needs remote_endpoint = true")
        return self

    @property
    def by_connection(self) -> bool:
        """The head is reached through HyperPod's endpoint operator."""
        return self.dashboard_url == "sagemaker_ray://"

    def url_of(self, service: str, port: str) -> str:
        """Where the head behind this service answers."""
        parts = {"{service}": service, "{namespace}": self.namespace, "{port}": port}
        url = self.dashboard_url
        for placeholder, part in parts.items():
            url = url.replace(placeholder, part)
        return url
