"""Configurations of Kubernetes clusters to test with, from the profile that is shipped."""

from typing import Any

from configs.loader import load_config
from configs.schema import ClusterConfig
from tasks.backends.protocols import Image

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
