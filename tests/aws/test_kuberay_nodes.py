"""What is said of machines that take no pod: each is counted once, by what keeps it away."""

from typing import Any

import pytest

from tasks.backends.kuberay_reasons import Scene, explain
from tasks.backends.ray_manifest import INSTANCE_TYPE, NODE_HEALTH

KIND = "ml.g7e.12xlarge"
CLUSTER = {"metadata": {"name": "maze", "uid": "1"}, "spec": {}}
Object = dict[str, Any]


def node(ready: str = "True", closed: bool = False, **labels: str) -> Object:
    names = {"health": NODE_HEALTH, "deep": "sagemaker.amazonaws.com/deep-health-check-status"}
    return {
        "metadata": {"labels": {INSTANCE_TYPE: KIND} | {names[k]: v for k, v in labels.items()}},
        "spec": {"unschedulable": True} if closed else {},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def told(*nodes: Object, asks_health: bool = True) -> str:
    """What is said of one pod that no node takes, its end from the first node on."""
    selector = {INSTANCE_TYPE: KIND} | ({NODE_HEALTH: "Schedulable"} if asks_health else {})
    why = {"type": "PodScheduled", "status": "False", "message": "0/9 nodes are available"}
    pod = {
        "metadata": {"name": "maze-worker", "uid": "2"},
        "spec": {"nodeSelector": selector},
        "status": {"phase": "Pending", "conditions": [why]},
    }
    (reason,) = explain(Scene(CLUSTER, [pod], nodes=list(nodes)))
    start = "a pod: no node takes it: 0/9 nodes are available"
    assert reason.text.startswith(start) and not reason.hopeless
    return reason.text.removeprefix(start)


@pytest.mark.parametrize(
    ("only", "said"),
    [
        (node(health="Unschedulable"), "1 under a health check"),
        (node(health="Unschedulable", deep="InProgress"), "1 under a deep health check"),
        (node(health="UnschedulablePendingReplacement"), "1 about to be replaced"),
        (node(health="UnschedulablePendingReboot"), "1 about to be restarted"),
        (node(health="Schedulable", ready="Unknown"), "1 not ready"),
        (node(health="Schedulable", closed=True), "1 closed to new pods"),
    ],
)
def test_what_keeps_pods_from_a_node_is_said(only: Object, said: str) -> None:
    assert told(only) == f"; of 1 nodes {KIND}, {said}"


def test_nodes_are_counted_by_what_keeps_them() -> None:
    good, ill = node(health="Schedulable"), node(health="Unschedulable")
    assert told(good, ill, ill, node(health="Schedulable", ready="False")) == (
        f"; of 4 nodes {KIND}, 2 under a health check, 1 not ready"
    )
    assert told(good, good) == f"; of 2 nodes {KIND} all are healthy"


def test_a_node_without_hyperpods_label_is_no_healthy_one_to_a_pod_that_asks_for_it() -> None:
    """Machines without an accelerator have no health agent: the head's may never get the label."""
    assert told(node()) == (
        f"; of 1 nodes {KIND}, 1 without HyperPod's health label (only_healthy = false takes "
        "them too)"
    )
    assert told(node(), asks_health=False) == f"; of 1 nodes {KIND} all are healthy"


def test_reasons_that_time_does_not_mend_come_first() -> None:
    def pod(uid: str, waiting: str) -> Object:
        state = {"waiting": {"reason": waiting, "message": "said"}}
        scheduled = {"type": "PodScheduled", "status": "True"}
        status = {"conditions": [scheduled], "containerStatuses": [{"state": state}]}
        return {"metadata": {"name": uid, "uid": uid}, "spec": {}, "status": status}

    first, second = explain(
        Scene(CLUSTER, [pod("1", "ContainerCreating"), pod("2", "InvalidImageName")])
    )
    assert first.hopeless and "cannot be pulled (InvalidImageName)" in first.text
    assert not second.hopeless
