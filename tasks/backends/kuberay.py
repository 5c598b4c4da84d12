"""A Ray cluster on Kubernetes: a RayCluster that KubeRay runs, made or adopted by its name.

What we make carries our label and the digest of its manifest, and only such is ever deleted. What
somebody else has made is used where the profile names it, after a check, and left as it was.
"""

import logging
import time
from functools import cached_property

from configs.schema import ClusterConfig
from tasks.backends import kuberay_plan, ray_manifest
from tasks.backends.dashboard_connection import DashboardConnection, NotOpen
from tasks.backends.kuberay_adoption import misfits
from tasks.backends.kuberay_reasons import Reason, Scene, about, explain
from tasks.backends.kubernetes_api import (
    CLAIMS,
    EVENTS,
    NODES,
    PODS,
    RAY_CLUSTERS,
    VOLUMES,
    WORKLOADS,
    Kind,
    KubernetesApi,
    KubernetesError,
    Object,
)
from tasks.backends.protocols import Cluster, Image, Planned
from tasks.backends.ray_jobs import RayJobs
from tasks.backends.ray_manifest import CLUSTER_LABEL, MANAGED_BY, OURS, is_made_of, is_ours
from tasks.backends.ray_nodes import count_nodes, count_surely

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # Prefect passes on what this package logs, but leaves its level alone
_LOOK_S = 5
"""Between looks at what is not announced: pods, nodes, the dashboard."""
_PATIENCE_S = 300
"""With what time alone does not mend, such as an image that cannot be pulled."""
_FAREWELL_S = 60
"""For pods to go that have used up their time, before and after they are forced to."""
_LOG_LINES = 100
_DASHBOARD_PORT = "8265"


class KubeRay:
    """Implements `ClusterBackend` with one RayCluster."""

    def __init__(self, config: ClusterConfig) -> None:
        self._kuberay = ray_manifest.section(config)
        self._sessions: dict[str, DashboardConnection | None] = {}

    @cached_property
    def _api(self) -> KubernetesApi:
        return KubernetesApi.connect(self._kuberay.namespace, self._kuberay.api)

    def find(self, name: str, config: ClusterConfig, image: Image) -> Cluster | None:
        """The RayCluster if all its nodes answer; ours only if it was made of this profile.

        Raises:
            ValueError: the one to adopt does not fit; says why.
            KubernetesError: the API does not answer or refuses.
        """
        found = self._api.get(RAY_CLUSTERS, self._kuberay.adopt or name)
        if found is None or _is_going(found):
            return None
        if self._kuberay.adopt:
            self._check_fit(found, config, image)
        elif not is_made_of(found, ray_manifest.ray_cluster(name, config, image)):
            return None
        if not _has_all_pods(found):
            return None
        try:
            url = self._url(found)
        except NotOpen:
            return None
        return self._answering(found, count_surely(url, self._session(found)), config.num_workers)

    def start(self, name: str, config: ClusterConfig, image: Image) -> Cluster:
        """Have the RayCluster and wait until all its nodes answer.

        Raises:
            ValueError: the one to adopt does not fit or is not there, the name is somebody
                else's, or the volume is missing.
            RuntimeError: it did not come up; says what it was waiting for.
        """
        if self._kuberay.adopt:
            found = self._api.get(RAY_CLUSTERS, self._kuberay.adopt)
            if found is None:
                raise ValueError(
                    f"namespace {self._kuberay.namespace} has no RayCluster "
                    f"{self._kuberay.adopt}: make it, or take cluster.kuberay.adopt out"
                )
            self._check_fit(found, config, image)
        else:
            self._have_volume()
            self._have_cluster(name, ray_manifest.ray_cluster(name, config, image))
        return self._await_answer(self._kuberay.adopt or name, config)

    def plan(self, name: str, config: ClusterConfig, image: Image) -> tuple[Planned, ...]:
        """Volume, claim and RayCluster as `start` would make them.

        Raises:
            ValueError: `start` would refuse.
        """
        api: KubernetesApi | None = None
        note: tuple[Planned, ...] = ()
        try:
            api = self._api
            api.get(RAY_CLUSTERS, name)
        except RuntimeError as error:
            api, note = None, (Planned(call=f"none: as if nothing were there yet: {error}"),)
        return note + kuberay_plan.planned(api, self._kuberay, name, config, image)

    def stop(self, name: str) -> None:
        """Delete the RayCluster if it is ours and wait until its pods are gone; of one that is
        adopted, end the jobs that we have submitted.

        Raises:
            RuntimeError: pods or jobs stay; names them.
        """
        found = self._api.get(RAY_CLUSTERS, self._kuberay.adopt or name)
        if found is None:
            return
        if self._kuberay.adopt:
            url, session = self._url(found), self._session(found)
            if count_nodes(url, session):
                RayJobs(url, session).stop_ours()
        elif is_ours(found):
            self._api.delete(RAY_CLUSTERS, found)
            self._await_end(found)

    def diagnose(self, name: str) -> str:
        """Pods, events and the last lines of every node, as far as Kubernetes tells them."""
        name = self._kuberay.adopt or name
        try:
            scene = self._look(name)
            parts = [f"#### RayCluster {name}\n{_told(explain(scene))}"]
            parts += [f"#### {_title(pod)}\n{self._last_lines(pod)}" for pod in scene.pods]
            events = [
                f"{each.get('reason', '')}: {each.get('message', '')}" for each in scene.events
            ]
            return "\n\n".join([*parts, "#### events\n" + "\n".join(events)]) + "\n"
        except KubernetesError as error:
            return f"nothing is known of RayCluster {name}: {error}\n"

    def _check_fit(self, found: Object, config: ClusterConfig, image: Image) -> None:
        if wrong := misfits(found, config, image):
            raise ValueError(
                f"RayCluster {found['metadata']['name']} cannot be adopted: {'; '.join(wrong)}; "
                "change it or the profile"
            )

    def _have_volume(self) -> None:
        """Make the claim where it is missing; it stays when the cluster goes."""
        volume = self._kuberay.volume
        if self._api.get(CLAIMS, volume.claim):
            return
        if not volume.file_system_id:
            raise ValueError(
                f"namespace {self._kuberay.namespace} has no PersistentVolumeClaim "
                f"{volume.claim}: make it, or give cluster.kuberay.volume the file_system_id, "
                "dns_name and mount_name of an FSx file system"
            )
        manifest = ray_manifest.persistent_volume(self._kuberay)
        if not self._api.create(VOLUMES, manifest):
            self._check_volume(manifest["metadata"]["name"], volume.file_system_id)
        self._api.create(CLAIMS, ray_manifest.volume_claim(self._kuberay))

    def _check_volume(self, name: str, file_system_id: str) -> None:
        known = self._api.get(VOLUMES, name) or {"spec": {}}
        handle = known["spec"].get("csi", {}).get("volumeHandle")
        if handle != file_system_id:
            raise ValueError(
                f"PersistentVolume {name} is of {handle or 'another kind'}, not of "
                f"{file_system_id}: delete it or take another cluster.kuberay.volume.claim"
            )

    def _have_cluster(self, name: str, manifest: Object) -> None:
        """Create it, adopt what was made of this very manifest, or replace what was not."""
        found = self._api.get(RAY_CLUSTERS, name)
        if found and not is_ours(found):
            raise ValueError(
                f"RayCluster {name} in namespace {self._kuberay.namespace} is somebody else's: "
                "name it in cluster.kuberay.adopt or give the profile another name"
            )
        if found and (_is_going(found) or not is_made_of(found, manifest)):
            self.stop(name)
            found = None
        if found is None and not self._api.create(RAY_CLUSTERS, manifest):
            self._have_cluster(name, manifest)  # another flow was first

    def _await_answer(self, name: str, config: ClusterConfig) -> Cluster:
        began = time.monotonic()
        told, hopeless_since = "", None
        while True:
            scene = self._look(name)
            if _has_all_pods(scene.cluster):
                answer = self._ask_dashboard(scene.cluster, config.num_workers)
                if isinstance(answer, Cluster):
                    return answer
                reasons = [answer]
            else:
                reasons = explain(scene)
            told = self._tell(_told(reasons), told)
            now = time.monotonic()
            is_hopeless = any(reason.hopeless for reason in reasons)
            hopeless_since = (hopeless_since or now) if is_hopeless else None
            given_up = hopeless_since is not None and now - hopeless_since > _PATIENCE_S
            if given_up or now - began > config.start_timeout_s:
                raise RuntimeError(
                    f"RayCluster {name} did not come up in {now - began:.0f} s: {told}. Next: mend "
                    "that, then start the same flow again"
                )
            self._api.await_change(RAY_CLUSTERS, scene.cluster, _LOOK_S)

    def _ask_dashboard(self, found: Object, num_workers: int) -> Cluster | Reason:
        """The cluster if it is complete, or why that is not to be seen."""
        try:
            url = self._url(found)
        except NotOpen as error:
            return Reason(f"the pods run; {error}")
        num_nodes = count_nodes(url, self._session(found))
        answering = self._answering(found, num_nodes, num_workers)
        return answering or Reason(f"the pods run; not all Ray nodes are known at {url}")

    def _tell(self, now: str, before: str) -> str:
        if now != before:
            _LOG.info("cluster: waiting: %s", now)
        return now

    def _look(self, name: str) -> Scene:
        """The RayCluster and what is around it; what we may not see is left out.

        Raises:
            KubernetesError: it is gone, or the API does not answer.
        """
        cluster = self._api.get(RAY_CLUSTERS, name)
        if cluster is None:
            raise KubernetesError(f"RayCluster {name} is gone: somebody has deleted it", 404)
        queued = "kueue.x-k8s.io/queue-name" in cluster["metadata"].get("labels", {})
        pods = self._api.list(PODS, labels=f"{CLUSTER_LABEL}={name}")
        events = self._visible(EVENTS, fields="involvedObject.kind=Pod")
        return Scene(
            cluster=cluster,
            pods=pods,
            events=about(pods, events),
            nodes=self._visible(NODES),
            workloads=self._visible(WORKLOADS) if queued else [],
        )

    def _visible(self, kind: Kind, fields: str = "") -> list[Object]:
        """Only explanations come from these, so it is no failure where a namespace's user may not
        see them or their kind is not installed."""
        try:
            return self._api.list(kind, fields=fields)
        except KubernetesError as error:
            if error.status not in (403, 404):
                raise
            return []

    def _answering(self, found: Object, num_nodes: int, num_workers: int) -> Cluster | None:
        if num_nodes < 1 + num_workers:
            return None
        return Cluster(
            name=found["metadata"]["name"],
            dashboard_url=self._url(found),
            num_nodes=num_nodes,
        )

    def _session(self, found: Object) -> DashboardConnection | None:
        """One for each RayCluster, also for a new one of an old name."""
        meta = found["metadata"]
        if meta["uid"] not in self._sessions:
            self._sessions[meta["uid"]] = DashboardConnection.of(self._kuberay, meta["name"])
        return self._sessions[meta["uid"]]

    def _url(self, found: Object) -> str:
        if self._kuberay.by_connection and (session := self._session(found)):
            return session.url()
        status = found.get("status", {})
        service = status.get("head", {}).get("serviceName")
        port = status.get("endpoints", {}).get("dashboard", _DASHBOARD_PORT)
        return self._kuberay.url_of(service or f"{found['metadata']['name']}-head-svc", port)

    def _await_end(self, deleted: Object) -> None:
        """A pod on a machine that died never says that it has ended: it is forced to go, and
        should it live on, its attempt is fenced."""
        meta = deleted["metadata"]
        force_at = time.monotonic() + self._kuberay.stop_timeout_s + _FAREWELL_S
        give_up_at = force_at + _FAREWELL_S
        while (found := self._api.get(RAY_CLUSTERS, meta["name"])) and (
            found["metadata"]["uid"] == meta["uid"]
        ):
            if time.monotonic() > force_at:
                left = self._force(meta["name"])
                if time.monotonic() > give_up_at:
                    raise RuntimeError(
                        f"RayCluster {meta['name']} does not end: {left or 'its pods are gone'}; "
                        "does KubeRay's operator run? Then delete it with kubectl"
                    )
            self._api.await_change(RAY_CLUSTERS, found, _LOOK_S)

    def _force(self, name: str) -> str:
        """Forget the pods that should have ended; says which."""
        labels = f"{CLUSTER_LABEL}={name},{MANAGED_BY}={OURS}"
        left = [pod for pod in self._api.list(PODS, labels=labels) if _is_going(pod)]
        for pod in left:
            self._api.delete(PODS, pod, grace_s=0)
        return ", ".join(_title(pod) for pod in left)

    def _last_lines(self, pod: Object) -> str:
        try:
            container = pod["spec"]["containers"][0]["name"]
            return self._api.log(pod["metadata"]["name"], container, _LOG_LINES)
        except KubernetesError as error:  # it has none before its container runs
            return str(error)


def _told(reasons: list[Reason]) -> str:
    return "; ".join(reason.text for reason in reasons) or "KubeRay has not said why"


def _title(pod: Object) -> str:
    phase = pod.get("status", {}).get("phase", "unknown")
    return f"{pod['metadata']['name']} on {pod['spec'].get('nodeName', 'no node')} ({phase})"


def _is_going(found: Object) -> bool:
    return "deletionTimestamp" in found["metadata"]


def _has_all_pods(found: Object) -> bool:
    """By KubeRay's word on the newest spec. Its `state` stays `ready` when a pod is lost later, and
    all its status when it is deleted."""
    status = found.get("status", {})
    is_old = status.get("observedGeneration", 0) < found["metadata"].get("generation", 0)
    if is_old or _is_going(found):
        return False
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    wanted = sum(
        group.get("replicas", 0) * group.get("numOfHosts", 1)
        for group in found["spec"].get("workerGroupSpecs", [])
    )
    return (
        conditions.get("HeadPodReady") == "True" and status.get("readyWorkerReplicas", 0) >= wanted
    )
