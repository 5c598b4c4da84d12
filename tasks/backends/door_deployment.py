"""A door on Kubernetes, in front of model servers that are proven as those of one machine are.

What is wanted is the serving file on the shared volume (configs/serving.py): the door loads a new
adapter into the running servers and proves each of them. Where they stand is theirs (`Servers`).
Another base or image is another pod, and the one before serves until the new one is proven.
"""

import logging
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol

from configs.hosting import ServingPodConfig
from configs.kuberay import KubeRayConfig, PodConfig
from configs.serving import RayApp, Serving
from tasks.backends.door import Door, wish_for
from tasks.backends.kubernetes_api import DEPLOYMENTS, PODS, SERVICES, KubernetesApi, Object
from tasks.backends.pod_reasons import why_not_ready
from tasks.backends.protocols import Endpoint, Fact, HostedModel, Planned
from tasks.backends.ray_manifest import SPEC_DIGEST, is_ours
from tasks.backends.serving_manifest import APP, deployment, services, unproven_name
from tasks.home import Home, write_private

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # Prefect passes on what this package logs, but leaves its level alone
_BEFORE = "serving-before.json"
_LOOK_S = 3
"""Between looks at the pods; the door is asked more often."""


class _Before(Fact):
    """What served before the last change, to go back to."""

    wish: Serving
    deployment: Object
    is_over: bool = False
    """The change was proven or taken back; else its flow may have died over it."""


class Servers(Protocol):
    """Where the model servers stand."""

    @property
    def machine(self) -> PodConfig:
        """What the door's pod runs on."""
        ...

    def addresses(self, model: HostedModel) -> tuple[Path | RayApp, ...]: ...

    def containers(self, model: HostedModel, serving: Path) -> list[Object]:
        """Those of the door's pod."""
        ...

    def planned(self, model: HostedModel) -> list[Object]:
        """The objects that `have` creates."""
        ...

    def have(self, model: HostedModel) -> None:
        """Let those that are not in the door's pod come up, beside those that serve.

        Raises:
            RuntimeError: they did not come up; says what was waited for.
        """
        ...

    def keep_only(self, wish: Serving) -> None:
        """Put away those that this wish does not name."""
        ...


class DoorDeployment:
    """Implements `ModelServer` with one Deployment and its Service, and the servers behind it."""

    def __init__(
        self, pod: ServingPodConfig, kuberay: KubeRayConfig, home: Home, servers: Servers
    ) -> None:
        self._pod = pod
        self._kuberay = kuberay
        self._servers = servers
        self._file = home.hosting / "serving.json"

    @cached_property
    def _api(self) -> KubernetesApi:
        return KubernetesApi.connect(self._kuberay.namespace, self._kuberay.api)

    def find(self, model: HostedModel) -> Endpoint | None:
        wish = self._wish()
        if wish is None or self._serving(model, wish.generation) != wish:
            return None
        found = self._api.get(DEPLOYMENTS, self._pod.service)
        if found is None or not _is_made_of(found, self._manifest(model)):
            return None
        door = self._door(model)
        return door.endpoint(wish) if _is_rolled_out(found) and door.serves(wish) else None

    def serve(self, model: HostedModel) -> Endpoint:
        """Have the pod, ask for the adapter, and wait until every server is proven.

        Raises:
            ValueError: the name is somebody else's.
            RuntimeError: a server does not serve what was measured, or none came up in time; says
                what it was waiting for. What served before goes on.
        """
        before, wish_before = self._api.get(DEPLOYMENTS, self._pod.service), self._wish()
        manifest = self._manifest(model)
        self._check_ours(before)
        wish = self._serving(model, wish_before.generation + 1 if wish_before else 1)
        if before and wish_before:
            self._keep(_Before(wish=wish_before, deployment=before))
        try:
            self._servers.have(model)
            write_private(self._file, wish.model_dump_json(indent=1) + "\n")
            self._have(before, manifest)
            self._have_services(model)
            self._door(model).await_proof(
                wish,
                model.timeout_s,
                f"the pods of Deployment {self._pod.service}",
                self._watch(model, wish),
            )
        except RuntimeError:
            self._go_back(before, wish_before, wish)
            raise
        self._end_change()
        return self._door(model).endpoint(wish)

    def plan(self, model: HostedModel) -> tuple[Planned, ...]:
        """What serving it anew creates."""
        made = [*self._servers.planned(model), self._manifest(model)]
        made += services(self._pod, self._kuberay, model.port)
        return tuple(Planned(call=f"create {each['kind']}", manifest=each) for each in made)

    def settle(self, champion_digest: str) -> bool:
        wish, kept = self._wish(), self._kept()
        if wish is None:
            return False
        if wish.champion.digest == champion_digest and (kept is None or kept.is_over):
            self._servers.keep_only(wish)
            return False
        if kept is None or kept.wish.champion.digest != champion_digest:
            return False
        self._go_back(kept.deployment, kept.wish, wish)
        return True

    def _keep(self, before: _Before) -> None:
        write_private(self._file.with_name(_BEFORE), before.model_dump_json(indent=1) + "\n")

    def _end_change(self) -> None:
        if kept := self._kept():
            self._keep(kept.model_copy(update={"is_over": True}))

    def _kept(self) -> _Before | None:
        try:
            return _Before.model_validate_json(self._file.with_name(_BEFORE).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _have(self, known: Object | None, manifest: Object) -> None:
        """Create it, or replace what was made of another manifest."""
        while known is None or not _is_made_of(known, manifest):
            if known is None and self._api.create(DEPLOYMENTS, manifest):
                return
            if known is not None and self._api.replace(DEPLOYMENTS, known, manifest):
                return
            known = self._api.get(DEPLOYMENTS, self._pod.service)  # somebody was faster
            self._check_ours(known)

    def _go_back(self, before: Object | None, wish_before: Serving | None, wish: Serving) -> None:
        """To the pod and the adapter that served, where there were any."""
        if wish_before:
            again = wish_before.model_copy(update={"generation": wish.generation + 1})
            write_private(self._file, again.model_dump_json(indent=1) + "\n")
        if before:
            kept = ("name", "namespace", "labels", "annotations")
            meta = {key: before["metadata"][key] for key in kept}
            head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta}
            self._have(
                self._api.get(DEPLOYMENTS, self._pod.service), head | {"spec": before["spec"]}
            )
        if wish_before:
            self._servers.keep_only(wish_before)
        self._end_change()

    def _check_ours(self, found: Object | None) -> None:
        if found and not is_ours(found):
            raise ValueError(
                f"Deployment {self._pod.service} in namespace {self._kuberay.namespace} is "
                "somebody else's: give host.pod.service another name"
            )

    def _have_services(self, model: HostedModel) -> None:
        for manifest in services(self._pod, self._kuberay, model.port):
            name = manifest["metadata"]["name"]
            if self._api.create(SERVICES, manifest):
                continue
            known = self._api.get(SERVICES, name) or manifest
            if known["spec"]["ports"][0]["port"] != model.port:
                raise ValueError(
                    f"Service {name} in namespace {self._kuberay.namespace} is there with another "
                    "port: delete it, or take its port as host.port"
                )

    def _watch(self, model: HostedModel, wish: Serving) -> Callable[[], str]:
        """What hinders the pod from being the only one and ready, told whenever it changes."""
        told, next_look = "the pod is not there yet", 0.0

        def hindrance() -> str:
            nonlocal told, next_look
            if time.monotonic() > next_look:
                now = self._hindrance(model, wish)
                if now and now != told:
                    _LOG.info("host: waiting: %s", now)
                told, next_look = now, time.monotonic() + _LOOK_S
            return told

        return hindrance

    def _hindrance(self, model: HostedModel, wish: Serving) -> str:
        found = self._api.get(DEPLOYMENTS, self._pod.service)
        if found is None:
            return f"Deployment {self._pod.service} is gone: somebody has deleted it"
        if _is_rolled_out(found):
            return ""
        labels = f"{APP}={self._pod.service}"
        if not self._api.list(PODS, labels=labels):
            conditions = found.get("status", {}).get("conditions", [])
            failed = [each for each in conditions if each["type"] == "ReplicaFailure"]
            return failed[0].get("message", "") if failed else "Kubernetes has made no pod yet"
        fault = self._door(model, unproven_name(self._pod)).fault(wish)
        starts = f"its servers are not proven yet: {fault}" if fault else "it is not ready yet"
        return why_not_ready(self._api, labels, starts) or "the pod before it is still there"

    def _manifest(self, model: HostedModel) -> Object:
        containers = self._servers.containers(model, self._file)
        return deployment(
            self._pod, self._kuberay, model, self._file, self._servers.machine, containers
        )

    def _door(self, model: HostedModel, service: str = "") -> Door:
        name = service or self._pod.service
        url = self._pod.url_of(name, self._kuberay.namespace, model.port)
        return Door(url, self._file)

    def _serving(self, model: HostedModel, generation: int) -> Serving:
        return wish_for(model, generation, self._servers.addresses(model))

    def _wish(self) -> Serving | None:
        """What was asked for last."""
        try:
            return Serving.read(self._file)
        except (FileNotFoundError, ValueError):
            return None


def _is_made_of(found: Object, manifest: Object) -> bool:
    digests = [
        each["metadata"].get("annotations", {}).get(SPEC_DIGEST) for each in (found, manifest)
    ]
    return digests[0] == digests[1]


def _is_rolled_out(found: Object) -> bool:
    """The newest pod is ready, and no older one is left."""
    status = found.get("status", {})
    is_old = status.get("observedGeneration", 0) < found["metadata"].get("generation", 0)
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
    return not is_old and counts == [1, 1, 1]
