"""What stands for KubeRay and the machines: one function for each RayCluster, in its own thread.

It is called when a RayCluster is created and gets a handle; it makes pods, tells the status, and
returns once `handle.ending` is set and all that it has made is put away. It may start a real Ray
cluster and tell its port as the dashboard's.
"""

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.kubernetes_api.store import EVENT, POD, RAY_CLUSTER, Change, Object, Store

NOW = datetime(2026, 1, 1, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Operated:
    """A RayCluster in the hands of its operator."""

    store: Store
    cluster: Object
    """As it was created."""
    ending: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return self.cluster["metadata"]["name"]

    @property
    def namespace(self) -> str:
        return self.cluster["metadata"]["namespace"]

    @property
    def num_workers(self) -> int:
        return sum(group["replicas"] for group in self.cluster["spec"]["workerGroupSpecs"])

    def set_status(self, **status: Any) -> None:
        """Merge into the status; nothing once the RayCluster is gone."""
        known = self.store.items(RAY_CLUSTER, self.namespace)
        if any(each["metadata"]["uid"] == self.cluster["metadata"]["uid"] for each in known):
            self.store.patch(
                RAY_CLUSTER, self.namespace, self.name, {"status": status}, status=True
            )

    def set_ready(self, dashboard_port: int, num_ready: int | None = None) -> None:
        """What KubeRay says once the head and this many workers, or all, are up."""
        known = self.store.get(RAY_CLUSTER, self.namespace, self.name)
        self.set_status(
            state="ready",
            observedGeneration=known["metadata"]["generation"],
            desiredWorkerReplicas=self.num_workers,
            readyWorkerReplicas=self.num_workers if num_ready is None else num_ready,
            endpoints={"dashboard": str(dashboard_port), "metrics": "8080"},
            head={"serviceName": f"{self.name}-head-svc", "podName": f"{self.name}-head-0"},
            conditions=[condition("HeadPodReady", "True", "HeadPodRunningAndReady")],
        )

    def add_pods(self, **status: Any) -> list[str]:
        """The head's pod and the workers', each with this status, running by default."""
        groups = [("head", self.cluster["spec"]["headGroupSpec"])]
        for group in self.cluster["spec"]["workerGroupSpecs"]:
            groups += [("worker", group)] * group["replicas"]
        return [
            self.add_pod(f"{self.name}-{kind}-{number}", kind, group, **status)
            for number, (kind, group) in enumerate(groups)
        ]

    def add_pod(self, name: str, kind: str, group: Object, **status: Any) -> str:
        template, meta = group["template"], self.cluster["metadata"]
        labels = {"ray.io/cluster": self.name, "ray.io/node-type": kind}
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": self.name}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": template["metadata"].get("labels", {}) | labels,
                "ownerReferences": [owner | {"uid": meta["uid"], "controller": True}],
            },
            "spec": template["spec"]
            | ({} if is_unscheduled(status) else {"nodeName": name + "-n"}),
        }
        self.store.create(POD, self.namespace, pod)
        self.store.patch(POD, self.namespace, name, {"status": status or RUNNING}, status=True)
        return name

    def warn(self, pod: str, reason: str, message: str, at: str = NOW) -> None:
        """A Warning event about a pod."""
        about = self.store.get(POD, self.namespace, pod)["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{pod}.{reason.lower()}", "namespace": self.namespace},
            "involvedObject": {"kind": "Pod", "name": pod, "uid": about["uid"]},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": at,
        }
        self.store.create(EVENT, self.namespace, event)


Operator = Callable[[Operated], None]


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    told = {"type": kind, "status": status, "reason": reason, "message": message}
    return told | {"lastTransitionTime": NOW}


RUNNING = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
}


def pending(waiting: str, message: str) -> Object:
    """The status of a pod on a node whose container waits for this reason."""
    state = {"waiting": {"reason": waiting, "message": message}}
    container = {"name": "ray", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
        ],
        "containerStatuses": [container | {"state": state}],
    }


def unscheduled(message: str) -> Object:
    """The status of a pod that no node takes."""
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [why]}


def is_unscheduled(status: Object) -> bool:
    return any(
        each["status"] == "False" and each["type"] == "PodScheduled"
        for each in status.get("conditions", [])
    )


def comes_up(dashboard_port: int) -> Operator:
    """All pods run at once, and the head's dashboard has this port."""

    def operate(cluster: Operated) -> None:
        cluster.add_pods()
        cluster.set_ready(dashboard_port)
        cluster.ending.wait()

    return operate


def does_nothing(cluster: Operated) -> None:
    """KubeRay is not there."""
    cluster.ending.wait()


class Operators:
    """Runs one operator for each RayCluster from its creation to its end."""

    def __init__(self, store: Store, operator: Operator) -> None:
        self.operator = operator
        """For clusters created from now on."""
        self.failures: list[str] = []
        """Tracebacks of operators that failed."""
        self._store = store
        self._running: dict[str, tuple[Operated, threading.Thread]] = {}
        store.on_change.append(self._notice)

    def close(self, timeout_s: float = 30) -> None:
        """End all, wait for them, and fail if one has failed."""
        for operated, _ in self._running.values():
            operated.ending.set()
        for operated, thread in self._running.values():
            thread.join(timeout_s)
            assert not thread.is_alive(), f"the operator of {operated.name} does not end"
        assert not self.failures, "\n".join(self.failures)

    def _notice(self, change: Change) -> None:
        if change.kind is not RAY_CLUSTER:
            return
        meta = change.item["metadata"]
        if change.type == "ADDED":
            operated = Operated(self._store, change.item)
            self._store.held.add(meta["uid"])
            thread = threading.Thread(target=self._run, args=(operated,), daemon=True)
            self._running[meta["uid"]] = operated, thread
            thread.start()
        elif "deletionTimestamp" in meta or change.type == "DELETED":
            self._running[meta["uid"]][0].ending.set()

    def _run(self, operated: Operated) -> None:
        try:
            self.operator(operated)
        except BaseException:
            self.failures.append(traceback.format_exc())
        finally:
            self._store.release(operated.cluster["metadata"]["uid"])
