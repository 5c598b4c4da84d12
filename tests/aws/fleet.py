"""A HyperPod cluster of moto's whose machines are nodes of a strict Kubernetes; one may be lost."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto.sagemaker.models import ClusterNode, sagemaker_backends
from moto.server import ThreadedMotoServer

from configs.kuberay import KubeRayConfig
from tests.kubernetes_api.store import NODE, Store

NAME, REGION, ACCOUNT = "mazes", "us-west-2", "123456789012"
_HEALTHY = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
_SCRIPTS = {"SourceS3Uri": "s3://sagemaker-mazes/scripts", "OnCreate": "on_create.sh"}


@dataclass
class Fleet:
    """Its machines, as SageMaker and Kubernetes have them."""

    store: Store

    def add(self, machine: str) -> None:
        """Have Kubernetes know a machine that SageMaker runs."""
        name = f"hyperpod-{machine}"
        meta = {"name": name, "labels": _HEALTHY}
        self.store.create(NODE, "", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.store.patch(NODE, "", name, {"status": ready}, status=True)

    def lose(self, machine: str) -> None:
        """SageMaker finds it broken and takes it away from Kubernetes."""
        self._instances[machine].status = "Failure"
        self.store.delete(NODE, "", f"hyperpod-{machine}", {})

    def replace(self, machine: str) -> None:
        """What HyperPod's recovery does: another instance in its place."""
        lost = self._instances.pop(machine)
        lost.instance_id, lost.status = f"{machine}-again", "Running"
        self._instances[lost.instance_id] = lost
        self.add(lost.instance_id)

    def workers(self) -> list[str]:
        return [name for name in self._instances if name.startswith("worker")]

    def has_all(self) -> bool:
        return all(each.status == "Running" for each in self._instances.values())

    @property
    def _instances(self) -> dict[str, ClusterNode]:
        return sagemaker_backends[ACCOUNT][REGION].clusters[NAME].nodes


@contextmanager
def running_fleet(store: Store, kuberay: KubeRayConfig, num_workers: int) -> Iterator[Fleet]:
    """A machine for the head and one for each worker; the environment leads to their SageMaker."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        sagemaker: Any = boto3.client("sagemaker", REGION)
        kinds = (("head", kuberay.head, 1), ("worker", kuberay.worker, num_workers))
        groups = [
            {
                "InstanceGroupName": name,
                "InstanceCount": count,
                "InstanceType": pod.instance_type,
                "LifeCycleConfig": _SCRIPTS,
                "ExecutionRole": f"arn:aws:iam::{ACCOUNT}:role/hyperpod",
                "ThreadsPerCore": 1,
            }
            for name, pod, count in kinds
        ]
        sagemaker.create_cluster(ClusterName=NAME, InstanceGroups=groups)
        fleet = Fleet(store)
        for machine in fleet._instances:
            fleet.add(machine)
        try:
            yield fleet
        finally:
            sagemaker.delete_cluster(ClusterName=NAME)
            server.stop()
