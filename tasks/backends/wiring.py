"""The one place that picks vendors: from the configuration and the home to what stages use."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from configs.hosting import ServingPodConfig
from configs.image import RegistryConfig
from configs.kuberay import KubeRayConfig
from configs.schema import PostTrainConfig
from tasks import publication
from tasks.backends.aws_account import AwsAccount
from tasks.backends.buildah import Buildah
from tasks.backends.codebuild import CodeBuild
from tasks.backends.dashboard_connection import DashboardConnection
from tasks.backends.door_deployment import DoorDeployment, Servers
from tasks.backends.environment import EnvironmentBuilder
from tasks.backends.hyperpod import HyperPod
from tasks.backends.image_source import ImageSource
from tasks.backends.kuberay import KubeRay
from tasks.backends.kubernetes_api import KubernetesApi
from tasks.backends.local_ray import LocalRay
from tasks.backends.mlflow_tracker import MlflowTracker
from tasks.backends.object_store import FileStore
from tasks.backends.pod_servers import PodServers
from tasks.backends.protocols import (
    Account,
    Cluster,
    ClusterBackend,
    ImageBuilder,
    Jobs,
    MachinePool,
    ModelServer,
    ObjectStore,
    Tracker,
)
from tasks.backends.ray_jobs import RayJobs
from tasks.backends.ray_service import RayServices
from tasks.backends.s3_store import S3Store
from tasks.backends.supervisord import Supervisord
from tasks.backends.vllm_server import VllmServer
from tasks.home import Home, cache_folder


@dataclass(frozen=True)
class Backends:
    """The vendors of one run."""

    images: ImageBuilder
    clusters: ClusterBackend
    models: ModelServer
    tracker: Tracker
    pool: MachinePool | None = field(default=None, kw_only=True)
    """Of machines that can be lost and repaired."""
    kuberay: KubeRayConfig | None = field(default=None, kw_only=True)
    """How the dashboard of a RayCluster is reached."""
    store: ObjectStore | None = field(default=None, kw_only=True)
    """Of adapters, beside those in the runs."""

    def jobs(self, cluster: Cluster) -> Jobs:
        kuberay = self.kuberay
        session = DashboardConnection.of(kuberay, cluster.name) if kuberay else None
        return RayJobs(cluster.dashboard_url, session)


def make_backends(config: PostTrainConfig, home: Home) -> Backends:
    """Vendors by name; the schema admits no other names."""
    processes = Supervisord(home)
    source = ImageSource(config.train.device)
    images = {
        "environment": lambda: EnvironmentBuilder(cache_folder()),
        "buildah": lambda: Buildah(_registry(config), source),
        "codebuild": lambda: _codebuild(config, source),
    }
    clusters = {
        "local_ray": lambda: LocalRay(home, processes),
        "kuberay": lambda: KubeRay(config.cluster),
    }
    models = {
        "vllm_server": lambda: VllmServer(home, processes),
        "vllm_deployment": lambda: _deployment(config, home),
        "ray_service": lambda: _deployment(config, home),
    }
    return Backends(
        images=images[config.image.backend](),
        clusters=clusters[config.cluster.backend](),
        models=models[config.host.backend](),
        tracker=MlflowTracker(),
        pool=_pool(config),
        kuberay=config.cluster.kuberay,
        store=_store(config),
    )


def _store(config: PostTrainConfig) -> ObjectStore | None:
    if config.store is None:
        return None
    bucket, _, prefix = config.store.url.removeprefix("s3://").partition("/")
    is_s3 = config.store.url.startswith("s3://")
    return S3Store(bucket, prefix) if is_s3 else FileStore(Path(config.store.url))


def _registry(config: PostTrainConfig) -> RegistryConfig:
    assert config.image.registry is not None  # the schema has seen to it
    return config.image.registry


def _codebuild(config: PostTrainConfig, source: ImageSource) -> CodeBuild:
    assert config.image.codebuild is not None  # the schema has seen to it
    return CodeBuild(_registry(config), config.image.codebuild, source)


def make_account(config: PostTrainConfig) -> Account | None:
    """The account of a profile; None where it pays nobody."""
    region = config.preflight.region
    return AwsAccount(region) if region else None


def _deployment(config: PostTrainConfig, home: Home) -> DoorDeployment:
    pod, kuberay = config.host.pod, config.cluster.kuberay
    assert pod and kuberay  # the schema admits none without the other
    return DoorDeployment(pod, kuberay, home, _servers(config, pod, kuberay))


def _servers(config: PostTrainConfig, pod: ServingPodConfig, kuberay: KubeRayConfig) -> Servers:
    store, ray = _store(config), config.host.ray
    if ray is None:
        return PodServers(pod, kuberay)
    assert store and config.store  # the schema has seen to it
    adapters_url = f"{config.store.url.rstrip('/')}/{publication.FOLDER}"
    return RayServices(pod, ray, kuberay, adapters_url, partial(publication.publish, store))


def _pool(config: PostTrainConfig) -> MachinePool | None:
    kuberay, repair = config.cluster.kuberay, config.cluster.repair
    if kuberay is None or repair is None:
        return None
    return HyperPod(repair, lambda: KubernetesApi.connect(kuberay.namespace, kuberay.api))
