"""Why a RayCluster is not there yet: from what Kubernetes, Kueue and HyperPod say to one sentence
each, for people. Pure functions over plain objects.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tasks.backends.ray_manifest import INSTANCE_TYPE, NODE_HEALTH

Object = dict[str, Any]

_DEEP_CHECK = "sagemaker.amazonaws.com/deep-health-check-status"
_NODE_STATES = {
    "Unschedulable": "under a health check",
    "UnschedulablePendingReplacement": "about to be replaced",
    "UnschedulablePendingReboot": "about to be restarted",
}
_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_BROKEN = ("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainer")
_WORDS = 300


@dataclass(frozen=True)
class Reason:
    text: str
    hopeless: bool = False
    """Time alone will not mend it, though a moment may."""


@dataclass(frozen=True)
class Scene:
    """What is to be seen around one RayCluster."""

    cluster: Object
    pods: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    nodes: list[Object] = field(default_factory=list)
    workloads: list[Object] = field(default_factory=list)
    starts: str = "its Ray node starts"
    """Said of a pod that runs and is not ready yet."""


def explain(scene: Scene) -> list[Reason]:
    """Every reason once, with the number of pods that it holds; the telling ones first."""
    reasons = [*_of_queue(scene), *_of_cluster(scene)]
    found = Counter(reason for pod in scene.pods for reason in _of_pod(pod, scene))
    reasons += [Reason(f"{_pods(num)}{r.text}", r.hopeless) for r, num in found.items()]
    if not reasons and not scene.pods:
        reasons = [Reason("KubeRay has made no pods yet: does its operator run?")]
    return sorted(reasons, key=lambda reason: not reason.hopeless)


def _pods(num: int) -> str:
    return f"{num} pods: " if num > 1 else "a pod: "


def _of_queue(scene: Scene) -> Iterable[Reason]:
    """Kueue suspends the cluster until its queue has room for all of it."""
    queue = scene.cluster["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
    if not queue:
        return
    uid = scene.cluster["metadata"]["uid"]
    ours = [w for w in scene.workloads if any(o["uid"] == uid for o in _owners(w))]
    for workload in ours:
        conditions = _conditions(workload)
        for kind, wanted in (("Evicted", "False"), ("QuotaReserved", "True"), ("Admitted", "True")):
            condition = conditions.get(kind)
            if condition and condition["status"] != wanted:
                said = _short(condition.get("message") or condition.get("reason", ""))
                yield Reason(f"waits for quota in queue {queue}: {said}")
                return
    if not ours and scene.cluster["spec"].get("suspend"):
        yield Reason(f"queue {queue} has not taken it up: is there such a LocalQueue?")


def _of_cluster(scene: Scene) -> Iterable[Reason]:
    status = scene.cluster.get("status", {})
    failure = _conditions(scene.cluster).get("ReplicaFailure", {})
    if failure.get("status") == "True":
        yield Reason(f"KubeRay cannot make a pod: {_short(failure.get('message', ''))}")
    elif status.get("reason"):
        yield Reason(f"KubeRay says: {_short(status['reason'])}")


def _of_pod(pod: Object, scene: Scene) -> Iterable[Reason]:
    status = pod.get("status", {})
    conditions = _conditions(pod)
    if conditions.get("Ready", {}).get("status") == "True":
        return
    if "deletionTimestamp" in pod["metadata"]:
        yield Reason("is being ended")
        return
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        nodes = _of_nodes(pod, scene.nodes)
        yield Reason(f"no node takes it: {_short(scheduled.get('message', ''))}{nodes}")
        return
    if status.get("phase") == "Failed":
        yield Reason(f"failed: {_short(status.get('message') or status.get('reason', ''))}")
        return
    containers = status.get("containerStatuses", []) + status.get("initContainerStatuses", [])
    waiting = [w for c in containers if (w := c.get("state", {}).get("waiting"))]
    yield from (_of_container(each, pod, scene.events) for each in waiting[:1])
    if not waiting:
        yield Reason(scene.starts)


def _of_container(waiting: Object, pod: Object, events: list[Object]) -> Reason:
    why, said = waiting.get("reason", ""), _short(waiting.get("message", ""))
    if why in _PULL:
        return Reason(f"its image cannot be pulled ({why}): {said}", hopeless=True)
    if why.startswith(_BROKEN):
        return Reason(f"its container does not start ({why}): {said}", hopeless=True)
    warnings = [e for e in about([pod], events) if e.get("type") == "Warning"]
    if warnings:
        last = warnings[-1]
        return Reason(f"{last.get('reason', '')}: {_short(last.get('message', ''))}")
    return Reason("its image is being pulled")


def _of_nodes(pod: Object, nodes: list[Object]) -> str:
    """What HyperPod and Kubernetes do with the machines that the pod could run on."""
    selector = pod["spec"].get("nodeSelector", {})
    wanted = selector.get(INSTANCE_TYPE)
    if not wanted or not nodes:
        return ""
    fitting = [node for node in nodes if _labels(node).get(INSTANCE_TYPE) == wanted]
    if not fitting:
        return f"; the cluster has no {wanted}"
    states = Counter(_state(node, asks_health=NODE_HEALTH in selector) for node in fitting)
    del states[""]
    told = "".join(f", {num} {state}" for state, num in states.items())
    return f"; of {len(fitting)} nodes {wanted}{told or ' all are healthy'}"


def _state(node: Object, *, asks_health: bool) -> str:
    """What keeps pods from the node; empty where it is only full."""
    labels = _labels(node)
    if labels.get(_DEEP_CHECK) == "InProgress":
        return "under a deep health check"
    if asks_health and NODE_HEALTH not in labels:
        return "without HyperPod's health label (only_healthy = false takes them too)"
    if state := _NODE_STATES.get(labels.get(NODE_HEALTH, "")):
        return state
    if _conditions(node).get("Ready", {"status": "True"})["status"] != "True":
        return "not ready"
    return "closed to new pods" if node.get("spec", {}).get("unschedulable") else ""


def about(pods: list[Object], events: list[Object]) -> list[Object]:
    """The events of these pods, the newest last."""
    uids = {pod["metadata"]["uid"] for pod in pods}
    ours = [event for event in events if event.get("involvedObject", {}).get("uid") in uids]
    return sorted(ours, key=_time_of)


def _time_of(event: Object) -> str:
    """Kubernetes writes one of these, in UTC and so that text sorts as time."""
    made = event["metadata"].get("creationTimestamp", "")
    return event.get("lastTimestamp") or event.get("eventTime") or made


def _owners(item: Object) -> list[Object]:
    return item["metadata"].get("ownerReferences", [])


def _labels(item: Object) -> dict[str, str]:
    return item["metadata"].get("labels", {})


def _conditions(item: Object) -> dict[str, Object]:
    return {each["type"]: each for each in item.get("status", {}).get("conditions", [])}


def _short(words: str) -> str:
    return " ".join(words.split())[:_WORDS]
