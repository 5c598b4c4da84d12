"""Clusters to test with: configurations from the profile that is shipped, and backends of them."""

from pathlib import Path
from typing import Any

from configs.loader import load_config
from configs.schema import ClusterConfig
from tasks.backends.kuberay import KubeRay
from tasks.backends.protocols import Cluster, Image
from tests.kubernetes_api.server import KubernetesServer

Object = dict[str, Any]

IMAGE = Image(
    digest="2" * 64,
    python="/usr/local/bin/python",
    app="/opt/ariadne",
    reference=f"123456789012.dkr.ecr.us-east-1.amazonaws.com/ariadne/trainer@sha256:{'a' * 64}",
)
FSX = {
    "file_system_id": "fs-0123456789abcdef0",
    "dns_name": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
    "mount_name": "abcdefgh",
}


def cluster_config(**changes: Any) -> ClusterConfig:
    """`configs/hyperpod.toml`'s cluster; `kuberay__queue="q"` sets cluster.kuberay.queue."""
    given = {f"cluster.{key.replace('__', '.')}": value for key, value in changes.items()}
    return load_config("hyperpod", given).cluster


class Setting:
    """A profile and its backend on one server."""

    def __init__(self, server: KubernetesServer, folder: Path, **changes: Any) -> None:
        api = {key: str(value) for key, value in server.access(folder).items()}
        url = {"kuberay__dashboard_url": "http://127.0.0.1:{port}"}
        self.config = cluster_config(**({"kuberay__api": api, **url} | changes))
        self.backend = KubeRay(self.config)

    def find(self, image: Image = IMAGE) -> Cluster | None:
        return self.backend.find("maze", self.config, image)

    def start(self, image: Image = IMAGE) -> Cluster:
        return self.backend.start("maze", self.config, image)

    def stop(self) -> None:
        self.backend.stop("maze")


def claim() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "fsx-claim", "namespace": "ariadne"},
        "spec": {"accessModes": ["ReadWriteMany"]},
    }
