"""The one place that picks vendors: from the configuration and the home to what stages use."""

from dataclasses import dataclass

from configs.image import RegistryConfig
from configs.schema import PostTrainConfig
from tasks.backends.aws_account import AwsAccount
from tasks.backends.buildah import Buildah
from tasks.backends.codebuild import CodeBuild
from tasks.backends.environment import EnvironmentBuilder
from tasks.backends.kuberay import KubeRay
from tasks.backends.local_ray import LocalRay
from tasks.backends.mlflow_tracker import MlflowTracker
from tasks.backends.protocols import (
    Account,
    Cluster,
    ClusterBackend,
    ImageBuilder,
    Jobs,
    ModelServer,
    Tracker,
)
from tasks.backends.ray_jobs import RayJobs
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

    def jobs(self, cluster: Cluster) -> Jobs:
        return RayJobs(cluster.dashboard_url)


def make_backends(config: PostTrainConfig, home: Home) -> Backends:
    """Vendors by name; the schema admits no other names."""
    processes = Supervisord(home)
    images = {
        "environment": lambda: EnvironmentBuilder(cache_folder()),
        "buildah": lambda: Buildah(_registry(config)),
        "codebuild": lambda: _codebuild(config),
    }
    clusters = {
        "local_ray": lambda: LocalRay(home, processes),
        "kuberay": lambda: KubeRay(config.cluster),
    }
    models = {"vllm_server": lambda: VllmServer(home, processes)}
    return Backends(
        images=images[config.image.backend](),
        clusters=clusters[config.cluster.backend](),
        models=models[config.host.backend](),
        tracker=MlflowTracker(),
    )


def _registry(config: PostTrainConfig) -> RegistryConfig:
    assert config.image.registry is not None  # the schema has seen to it
    return config.image.registry


def _codebuild(config: PostTrainConfig) -> CodeBuild:
    assert config.image.codebuild is not None  # the schema has seen to it
    return CodeBuild(_registry(config), config.image.codebuild)


def make_account(config: PostTrainConfig) -> Account | None:
    """The account of a profile; None where it pays nobody."""
    region = config.preflight.region
    return AwsAccount(region) if region else None
