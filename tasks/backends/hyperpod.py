"""The machines of a HyperPod cluster: what SageMaker and Kubernetes say of them, and repairs.

SageMaker knows the instances, Kubernetes what HyperPod's health agent has found out about them.
The agent runs on machines with accelerators only. Of others, such as the head's, nobody sees that
they are ill but whoever looks whether Kubernetes still hears of them, as is done here.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from configs.repair import RepairConfig
from tasks.backends.kubernetes_api import NODES, KubernetesApi, KubernetesError, Object
from tasks.backends.protocols import Machine, Machines, Request
from tasks.backends.ray_manifest import GPU, NODE_HEALTH

_CONFIG = Config(
    connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 4}
)
_DEEP_CHECK = "sagemaker.amazonaws.com/deep-health-check-status"
_COMING = {
    "Pending": "is being started",
    "SystemUpdating": "gets new software",
    "DeepHealthCheckInProgress": "is under a deep health check",
    "ShuttingDown": "is being shut down",
    "AttachInProgress": "is being attached",
    "DetachInProgress": "is being detached",
    "NotFound": "is gone, and another is to come",
}
_LABELS = {
    "Unschedulable": "is under a health check",
    "UnschedulablePendingReplacement": "is about to be replaced",
    "UnschedulablePendingReboot": "is about to be restarted",
}
_NO_RIGHT = ("AccessDenied", "AccessDeniedException", "UnrecognizedClientException")
_NO_CLUSTER = ("ResourceNotFound", "ValidationException")
_EVENTS_OF = timedelta(hours=1)
_WORDS = 300


class HyperPod:
    """Implements `MachinePool`."""

    def __init__(
        self,
        config: RepairConfig,
        kubernetes: Callable[[], KubernetesApi],
        session: boto3.Session | None = None,
    ) -> None:
        self._config = config
        self._connect = kubernetes
        self._session = session or boto3.Session(region_name=config.region)

    @cached_property
    def _kubernetes(self) -> KubernetesApi:
        return self._connect()

    def look(self) -> Machines:
        """All instances of the cluster with the state that both sides give them."""
        about = self._ask("DescribeCluster", "describe_cluster")
        found = self._instances()
        nodes = {node["metadata"]["name"]: node for node in self._nodes()}
        # A cluster that says nothing of its recovery has the default, which is automatic.
        is_automatic = about.get("NodeRecovery", "Automatic") == "Automatic"
        machines = [
            _machine(each, nodes.get(f"hyperpod-{each['InstanceId']}"), automatic=is_automatic)
            for each in found
        ]
        return Machines(all=tuple(machines), news=self._news(about))

    def request(self, what: Request, machine: Machine) -> str:
        call = {"reboot": "BatchRebootClusterNodes", "replace": "BatchReplaceClusterNodes"}[what]
        method = f"batch_{what}_cluster_nodes"
        try:
            done = self._ask(call, method, NodeIds=[machine.name])
        except (ConnectionError, ValueError) as error:
            return str(error)
        refusals = [
            f"{each['ErrorCode']}: {each.get('Message', '')}" for each in done.get("Failed", [])
        ]
        return _short("; ".join(refusals))

    def _nodes(self) -> list[Object]:
        try:
            return self._kubernetes.list(NODES)
        except KubernetesError as error:
            kind = ValueError if error.status in (401, 403) else ConnectionError
            raise kind(str(error)) from None

    def _news(self, about: Object) -> str:
        """What keeps machines away that are not there yet, by the cluster's own word."""
        told = []
        if about.get("ClusterStatus") not in ("InService", None):
            why = about.get("FailureMessage", "")
            told.append(f"the HyperPod cluster is {about['ClusterStatus']} {why}".rstrip())
        for group in about.get("InstanceGroups", []):
            current, target = group.get("CurrentCount", 0), group.get("TargetCount", 0)
            if current < target:
                told.append(f"group {group['InstanceGroupName']} has {current} of {target}")
        if about.get("NodeProvisioningMode") == "Continuous":
            told += self._last_trouble()
        return _short("; ".join(told))

    def _last_trouble(self) -> list[str]:
        """The newest warning or error; it only explains, so not to see it is no failure."""
        try:
            events = self._ask(
                "ListClusterEvents",
                "list_cluster_events",
                EventTimeAfter=datetime.now(UTC) - _EVENTS_OF,
                SortBy="EventTime",
                SortOrder="Descending",
                MaxResults=100,
            )["Events"]
        except (ConnectionError, ValueError) as error:
            return [str(error)]
        bad = [each for each in events if each.get("EventLevel") in ("Warn", "Error")]
        return [f"HyperPod says: {each.get('Description', '')}" for each in bad[:1]]

    def _instances(self) -> list[Object]:
        found: list[Object] = []
        token: dict[str, str] = {}
        while True:
            page = self._ask("ListClusterNodes", "list_cluster_nodes", **token, MaxResults=100)
            found += page["ClusterNodeSummaries"]
            if not page.get("NextToken"):
                return found
            token = {"NextToken": page["NextToken"]}

    def _ask(self, right: str, method: str, **given: Any) -> Object:
        """
        Raises:
            ConnectionError: no answer, or one that asks to come back later.
            ValueError: a refusal for good; one line with the next move.
        """
        name = self._config.hyperpod_cluster
        where = f"HyperPod cluster {name} in {self._config.region}"
        try:
            client = self._session.client(
                "sagemaker", region_name=self._config.region, config=_CONFIG
            )
            return getattr(client, method)(ClusterName=name, **given)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            raise _refusal(code, where, right, error) from None
        except NoCredentialsError as error:
            raise ValueError(f"{where}: {error}: give this process a role") from None
        except BotoCoreError as error:
            raise ConnectionError(_short(f"{where}: {error}")) from None


def _refusal(code: str, where: str, right: str, error: ClientError) -> Exception:
    said = _short(f"{where}: {error}")
    if code in _NO_RIGHT:
        return ValueError(f"{said}; the credentials need sagemaker:{right}")
    if code in _NO_CLUSTER:
        return ValueError(f"{said}; is cluster.repair.hyperpod_cluster right?")
    return ConnectionError(said)


def _machine(instance: Object, node: Object | None, *, automatic: bool) -> Machine:
    status = instance["InstanceStatus"]
    state, words = _state(status, node)
    is_watched = node is None or NODE_HEALTH in _labels(node)
    # HyperPod does not try again with an instance that it could not set up.
    recovers = automatic and is_watched and status["Status"] != "Failure"
    if state == "ill" and not is_watched:
        words += ", and HyperPod has no health agent there"
    return Machine(
        name=instance["InstanceId"],
        instance_type=instance["InstanceType"],
        state=state,
        recovers=recovers,
        words=words,
        num_gpus=int((node or {}).get("status", {}).get("allocatable", {}).get(GPU, 0)),
    )


def _state(status: Object, node: Object | None) -> tuple[Any, str]:
    """The first trouble that one of both sides tells."""
    if status["Status"] == "Failure":
        return "ill", _short(f"has failed: {status.get('Message', '')}")
    if status["Status"] != "Running":
        return "coming", _COMING.get(status["Status"], f"is {status['Status']}")
    if node is None:
        return "ill", "is not in Kubernetes"
    labels = _labels(node)
    if labels.get(_DEEP_CHECK) == "InProgress":
        return "coming", "is under a deep health check"
    if words := _LABELS.get(labels.get(NODE_HEALTH, "")):
        return "coming", words
    conditions = {each["type"]: each for each in node.get("status", {}).get("conditions", [])}
    if conditions.get("Ready", {}).get("status") != "True":
        return "ill", "does not answer Kubernetes"
    if node.get("spec", {}).get("unschedulable"):
        return "closed", "is closed to new pods by a person"
    return "ready", "is ready"


def _labels(node: Object) -> dict[str, str]:
    return node["metadata"].get("labels", {})


def _short(words: str) -> str:
    return " ".join(words.split())[:_WORDS]
