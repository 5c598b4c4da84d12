"""What stands for KubeRay's controller of RayServices.

A RayService is a context: it is entered once it is made and left when it is deleted. It yields a
function that says how each application of its serveConfigV2 is.
"""

import json
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from tests.kubernetes_api.operators import RUNNING
from tests.kubernetes_api.store import POD, RAY_SERVICE, Change, Object, Store

Applications = Callable[[], dict[str, Any]]
"""Ray's own words: status and message by name."""
Runner = Callable[[Object], AbstractContextManager[Applications]]
_LOOK_S = 0.05


class RayServiceController:
    """Runs every RayService until it is deleted."""

    def __init__(self, store: Store, run: Runner) -> None:
        self.run = run
        """For RayServices from now on."""
        self.made: list[str] = []
        """Names of all that ever were."""
        self.failures: list[str] = []
        self._store = store
        self._wanted: dict[str, Object] = {}
        self._running: dict[str, tuple[ExitStack, Applications]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        store.on_change.append(self._notice)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and not self.failures, "\n".join(self.failures)

    def _notice(self, change: Change) -> None:
        if change.kind is not RAY_SERVICE:
            return
        name = change.item["metadata"]["name"]
        if change.type == "DELETED" or "deletionTimestamp" in change.item["metadata"]:
            self._wanted.pop(name, None)
        else:
            self._wanted[name] = change.item

    def _work(self) -> None:
        try:
            while not self._ending.wait(_LOOK_S):
                wanted = dict(self._wanted)
                for name in self._running.keys() - wanted.keys():
                    self._running.pop(name)[0].close()
                for name in wanted.keys() - self._running.keys():
                    self._start(name, wanted[name])
                for name, (_, applications) in self._running.items():
                    self._tell(name, wanted[name]["metadata"]["namespace"], applications())
        except BaseException:
            self.failures.append(traceback.format_exc())
        finally:
            for stack, _ in self._running.values():
                stack.close()

    def _start(self, name: str, item: Object) -> None:
        self.made.append(name)
        stack, cluster = ExitStack(), item["spec"]["rayClusterConfig"]
        namespace = item["metadata"]["namespace"]
        groups = [("head", cluster["headGroupSpec"])]
        for group in cluster["workerGroupSpecs"]:
            groups += [(f"{group['groupName']}-{n}", group) for n in range(group["replicas"])]
        for kind, group in groups:
            pod = f"{name}-abcde-{kind}"
            self._add_pod(pod, namespace, group["template"])
            stack.callback(self._store.delete, POD, namespace, pod, {})
        self._running[name] = stack, stack.enter_context(self.run(item))

    def _add_pod(self, name: str, namespace: str, template: Object) -> None:
        meta = {"name": name, "namespace": namespace, "labels": template["metadata"]["labels"]}
        spec = template["spec"] | {"nodeName": "a-machine"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        self._store.create(POD, namespace, pod)
        self._store.patch(POD, namespace, name, {"status": RUNNING}, status=True)

    def _tell(self, name: str, namespace: str, applications: dict[str, Any]) -> None:
        """The cluster is the active one once all applications run."""
        kept = ("status", "message")
        told = {app: {key: found[key] for key in kept} for app, found in applications.items()}
        runs = bool(told) and all(app["status"] == "RUNNING" for app in told.values())
        which = "activeServiceStatus" if runs else "pendingServiceStatus"
        known = [
            item for item in self._store.items(RAY_SERVICE) if item["metadata"]["name"] == name
        ]
        status = {which: {"applicationStatuses": told, "rayClusterName": f"{name}-abcde"}}
        if known and known[0].get("status") != status:
            change = {
                "status": {"activeServiceStatus": None, "pendingServiceStatus": None} | status
            }
            self._store.patch(RAY_SERVICE, namespace, name, change, status=True)


def serve_config(item: Object) -> Object:
    """As Ray takes it."""
    return json.loads(item["spec"]["serveConfigV2"])
