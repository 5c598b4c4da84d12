"""What stands for the controller of Deployments and the machines under their pods.

A pod is a context: it is entered when its pod is to run and left when that ends. It yields a
function that says whether the pod is ready. Of two pods, the older one ends once the newer one is
ready, as with maxUnavailable 0 and maxSurge 1.
"""

import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from tests.kubernetes_api.operators import RUNNING, condition
from tests.kubernetes_api.store import DEPLOYMENT, POD, Change, Object, Store

IsReady = Callable[[], bool]
PodRunner = Callable[[Object], AbstractContextManager[IsReady]]
_LOOK_S = 0.05
_STARTING = {
    "phase": "Running",
    "conditions": [
        {"type": "PodScheduled", "status": "True"},
        condition("Ready", "False", "ContainersNotReady"),
    ],
}


class Deployments:
    """Runs the newest pod of one Deployment, and the one before until then."""

    def __init__(self, store: Store, run: PodRunner) -> None:
        self.run = run
        """For pods from now on."""
        self.num_pods = 0
        """Ever made."""
        self.failures: list[str] = []
        self._store = store
        self._wanted: list[Object] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        store.on_change.append(self._notice)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(30)
        assert not self._thread.is_alive() and not self.failures, "\n".join(self.failures)

    def _notice(self, change: Change) -> None:
        if change.kind is DEPLOYMENT and change.type != "DELETED":
            known = [each["metadata"]["generation"] for each in self._wanted]
            if change.item["metadata"]["generation"] not in known:
                self._wanted.append(change.item)

    def _work(self) -> None:
        try:
            with ExitStack() as pods:
                done, running = 0, ExitStack()
                while not self._ending.wait(_LOOK_S):
                    if len(self._wanted) > done:
                        done = len(self._wanted)
                        running = self._roll(self._wanted[-1], running, done)
                        pods.callback(running.close)
        except BaseException:
            self.failures.append(traceback.format_exc())

    def _roll(self, item: Object, before: ExitStack, done: int) -> ExitStack:
        """Start the pod of this spec beside the one before; the one that is left running."""
        name = self._add_pod(item)
        pod = ExitStack()
        pod.callback(self._store.delete, POD, item["metadata"]["namespace"], name, {})
        is_ready = pod.enter_context(self.run(item["spec"]["template"]))
        num_before = len(self._pods(item)) - 1
        self._tell(item, replicas=1 + num_before, updatedReplicas=1, availableReplicas=num_before)
        while not is_ready():
            if self._ending.wait(_LOOK_S) or len(self._wanted) > done:  # given up for another
                pod.close()
                return before
        self._store.patch(
            POD, item["metadata"]["namespace"], name, {"status": RUNNING}, status=True
        )
        before.close()
        self._tell(item, replicas=1, updatedReplicas=1, availableReplicas=1)
        return pod

    def _pods(self, item: Object) -> list[Object]:
        return self._store.items(POD, item["metadata"]["namespace"])

    def _add_pod(self, item: Object) -> str:
        self.num_pods += 1
        meta, template = item["metadata"], item["spec"]["template"]
        name = f"{meta['name']}-{self.num_pods}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": template["metadata"]["labels"],
            },
            "spec": template["spec"] | {"nodeName": "a-machine"},
        }
        self._store.create(POD, meta["namespace"], pod)
        self._store.patch(POD, meta["namespace"], name, {"status": _STARTING}, status=True)
        return name

    def _tell(self, item: Object, **counts: Any) -> None:
        meta = item["metadata"]
        status = {"observedGeneration": meta["generation"], **counts}
        self._store.patch(
            DEPLOYMENT, meta["namespace"], meta["name"], {"status": status}, status=True
        )
