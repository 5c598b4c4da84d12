"""Model servers as applications of Ray Serve LLM, on a RayService that KubeRay runs.

A RayService is made anew for another base or image, beside the one that serves; the old one goes
once the new one is what serves. Adapters come from the object store, so they are published before
anybody asks for them.
"""

import logging
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from configs.hosting import RayServeConfig, ServingPodConfig
from configs.kuberay import KubeRayConfig
from configs.serving import RayApp, Serving
from tasks.backends.kubernetes_api import RAY_SERVICES, KubernetesApi, Object
from tasks.backends.pod_reasons import why_not_ready
from tasks.backends.protocols import HostedModel
from tasks.backends.ray_manifest import MANAGED_BY, OURS, Manifest, is_ours
from tasks.backends.ray_service_manifest import (
    DASHBOARD_PORT,
    SERVE_PORT,
    app_names,
    ray_service,
)
from tasks.backends.serving_manifest import APP

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # Prefect passes on what this package logs, but leaves its level alone
_LOOK_S = 3
_HOPELESS = "DEPLOY_FAILED"


class RayServices:
    """Implements `Servers`.

    Args:
        pod: The profile's host.pod: one worker.
        ray: Its host.ray: image and head.
        kuberay: Where RayServices are made.
        adapters_url: Where the store has its adapters, each in a folder named by its digest.
        publish: Has the adapter of a folder in the store.
    """

    def __init__(
        self,
        pod: ServingPodConfig,
        ray: RayServeConfig,
        kuberay: KubeRayConfig,
        adapters_url: str,
        publish: Callable[[Path], object],
    ) -> None:
        self._pod = pod
        self._ray = ray
        self._kuberay = kuberay
        self._adapters_url = adapters_url
        self._publish = publish
        self.machine = ray.head

    @cached_property
    def _api(self) -> KubernetesApi:
        return KubernetesApi.connect(self._kuberay.namespace, self._kuberay.api)

    def addresses(self, model: HostedModel) -> tuple[RayApp, ...]:
        place = self._manifest(model)["metadata"]["name"], self._kuberay.namespace
        url = self._ray.serve_at(*place, SERVE_PORT)
        dashboard = self._ray.dashboard_at(*place, DASHBOARD_PORT)
        names = app_names(model)
        return tuple(RayApp(name=n, url=f"{url}/{n}", dashboard=dashboard) for n in names)

    def containers(self, model: HostedModel, serving: Path) -> list[Manifest]:
        return []

    def planned(self, model: HostedModel) -> list[Manifest]:
        return [self._manifest(model)]

    def have(self, model: HostedModel) -> None:
        for adapter in filter(None, (model.champion, model.previous)):
            self._publish(adapter.folder)
        manifest = self._manifest(model)
        name = manifest["metadata"]["name"]
        if not self._api.create(RAY_SERVICES, manifest):
            self._check_ours(name)
        deadline, told = time.monotonic() + model.timeout_s, ""
        while hindrance := self._hindrance(name, app_names(model)):
            if hindrance != told:
                _LOG.info("host: waiting: %s", hindrance)
            told = hindrance
            if time.monotonic() > deadline or _HOPELESS in hindrance:
                raise RuntimeError(f"RayService {name} did not come up: {hindrance}")
            time.sleep(_LOOK_S)

    def keep_only(self, wish: Serving) -> None:
        """By the addresses in the wish, which name their RayService."""
        wanted = {each.url for each in wish.replicas if isinstance(each, RayApp)}
        for found in self._api.list(RAY_SERVICES, labels=f"{MANAGED_BY}={OURS}"):
            name = found["metadata"]["name"]
            url = self._ray.serve_at(name, self._kuberay.namespace, SERVE_PORT)
            is_of_this_service = name.rpartition("-")[0] == self._pod.service
            if is_of_this_service and not any(each.startswith(f"{url}/") for each in wanted):
                self._api.delete(RAY_SERVICES, found)

    def _check_ours(self, name: str) -> None:
        found = self._api.get(RAY_SERVICES, name)
        if found and not is_ours(found):
            raise ValueError(
                f"RayService {name} in namespace {self._kuberay.namespace} is somebody else's: "
                "give host.pod.service another name"
            )

    def _hindrance(self, name: str, apps: list[str]) -> str:
        """What keeps an application from running; empty once all do."""
        found = self._api.get(RAY_SERVICES, name)
        if found is None:
            return "it is gone: somebody has deleted it"
        told = _told_of(found)
        waits = [f"{app}: {told[app]}" for app in apps if app in told and told[app] != "RUNNING"]
        if waits:
            return "; ".join(waits)
        if all(app in told for app in apps):
            return ""
        pods = why_not_ready(self._api, f"{APP}={name}", "its Ray node starts")
        return pods or "KubeRay has not handed the applications to Ray yet"

    def _manifest(self, model: HostedModel) -> Manifest:
        return ray_service(self._pod, self._ray, self._kuberay, model, self._adapters_url)


def _told_of(found: Object) -> dict[str, str]:
    """The state of each application, with its reason where there is one."""
    status = found.get("status", {})
    apps: dict[str, str] = {}
    for which in ("pendingServiceStatus", "activeServiceStatus"):
        for name, app in (status.get(which, {}).get("applicationStatuses") or {}).items():
            words = " ".join(app.get("message", "").split())[-300:]
            state = app.get("status", "")
            apps[name] = f"{state}: {words}" if words and state != "RUNNING" else state
    return apps
