"""The objects of the stand-in, their versions, and the history that watches read."""

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tests.kubernetes_api import schemas, statuses

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace, empty where the kind has none, and name."""
_HISTORY = 1000
_FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True)
class Served:
    """A kind that is installed."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    has_status: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


RAY_CLUSTER = Served("RayCluster", "rayclusters", "ray.io")
RAY_SERVICE = Served("RayService", "rayservices", "ray.io")
POD = Served("Pod", "pods")
EVENT = Served("Event", "events", has_status=False)
NODE = Served("Node", "nodes", namespaced=False)
VOLUME = Served("PersistentVolume", "persistentvolumes", namespaced=False)
CLAIM = Served("PersistentVolumeClaim", "persistentvolumeclaims")
WORKLOAD = Served("Workload", "workloads", "kueue.x-k8s.io", "v1beta1")
DEPLOYMENT = Served("Deployment", "deployments", "apps")
SERVICE = Served("Service", "services")
CONNECTION = Served(
    "RayDashboardConnection",
    "raydashboardconnections",
    "connection.access.sagemaker.amazonaws.com",
    "v1alpha1",
)
"""Answered and not kept, by HyperPod's endpoint operator where a test has one."""
KINDS = (
    *(RAY_CLUSTER, RAY_SERVICE, POD, EVENT, NODE, VOLUME, CLAIM, WORKLOAD, DEPLOYMENT, SERVICE),
    CONNECTION,
)


@dataclass(frozen=True)
class Change:
    """One line of a watch."""

    version: int
    kind: Served
    type: str
    item: Object


@dataclass
class Store:
    """Safe to use from several threads."""

    namespaces: set[str] = field(default_factory=lambda: {"default", "ariadne"})
    dead_nodes: set[str] = field(default_factory=set)
    """Nodes whose kubelet is silent: pods on them end only when they are forced to."""
    logs: dict[tuple[str, str], str] = field(default_factory=dict)
    """Pod and container to what it has printed."""
    held: set[str] = field(default_factory=set)
    """Uids whose operator still works: to a foreground deletion it counts as a dependent."""
    on_change: list[Callable[[Change], None]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 100
    _items: dict[Served, dict[Key, Object]] = field(default_factory=lambda: {k: {} for k in KINDS})
    _history: list[Change] = field(default_factory=list)

    def get(self, kind: Served, namespace: str, name: str) -> Object:
        with self.changed:
            found = self._items[kind].get(_key(kind, namespace, name))
            if found is None:
                raise statuses.not_found(kind.plural, kind.group, name)
            return copy.deepcopy(found)

    def items(self, kind: Served, namespace: str = "") -> list[Object]:
        """In the order of their keys; of all namespaces where none is given."""
        with self.changed:
            keys = sorted(self._items[kind])
            return [
                copy.deepcopy(self._items[kind][key])
                for key in keys
                if not (namespace and kind.namespaced) or key[0] == namespace
            ]

    def create(self, kind: Served, namespace: str, body: Object) -> Object:
        """As a client's POST; a status in it is kept for kinds without the subresource only."""
        made = copy.deepcopy(body)
        meta = made.setdefault("metadata", {})
        self._check_place(kind, namespace, made)
        if meta.pop("resourceVersion", None):
            raise statuses.bad_request("resourceVersion should not be set on objects to be created")
        schemas.check(kind.kind, kind.group, kind.version, made)
        if kind.has_status:
            made.pop("status", None)
        with self.changed:
            key = _key(kind, namespace, meta["name"])
            if key in self._items[kind]:
                raise statuses.already_exists(kind.plural, kind.group, meta["name"])
            meta |= {"uid": str(uuid4()), "creationTimestamp": _now(), "generation": 1}
            self._put(kind, key, made, "ADDED")
            return copy.deepcopy(made)

    def replace(
        self, kind: Served, namespace: str, name: str, body: Object, *, status: bool = False
    ) -> Object:
        """As a client's PUT: of all but the status, or of the status alone."""
        with self.changed:
            known = self.get(kind, namespace, name)
            version = body.get("metadata", {}).get("resourceVersion")
            if version and version != known["metadata"]["resourceVersion"]:
                raise statuses.stale(kind.plural, kind.group, name)
            if kind.group and not version:
                why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
                raise statuses.invalid(kind.kind, kind.group, name, [why])
            schemas.check(kind.kind, kind.group, kind.version, body)
            made = copy.deepcopy(known if status else body)
            if kind.has_status:
                made["status"] = copy.deepcopy((body if status else known).get("status", {}))
            for fixed in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
                if fixed in known["metadata"]:
                    made["metadata"][fixed] = known["metadata"][fixed]
            if made.get("spec") != known.get("spec"):
                made["metadata"]["generation"] += 1
            self._put(kind, _key(kind, namespace, name), made, "MODIFIED")
            self._collect(kind, _key(kind, namespace, name))
            return copy.deepcopy(made)

    def patch(
        self, kind: Served, namespace: str, name: str, change: Object, *, status: bool = False
    ) -> Object:
        """As a client's JSON merge patch."""
        with self.changed:
            known = self.get(kind, namespace, name)
            return self.replace(kind, namespace, name, _merge(known, change), status=status)

    def delete(self, kind: Served, namespace: str, name: str, options: Object) -> Object:
        """As a client's DELETE; the object may stay for a while, as being deleted."""
        with self.changed:
            known = self.get(kind, namespace, name)
            meta = known["metadata"]
            wanted = options.get("preconditions", {}).get("uid")
            if wanted and wanted != meta["uid"]:
                why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: "
                raise statuses.conflict(kind.plural, kind.group, name, why + meta["uid"])
            if options.get("propagationPolicy") == "Foreground" and kind is not POD:
                meta["finalizers"] = sorted({*meta.get("finalizers", []), _FOREGROUND})
            key = _key(kind, namespace, name)
            on_dead_node = known.get("spec", {}).get("nodeName") in self.dead_nodes
            lingers = kind is POD and on_dead_node and options.get("gracePeriodSeconds") != 0
            if meta.get("finalizers") or lingers:
                if "deletionTimestamp" not in meta:
                    meta["deletionTimestamp"] = _now()
                    self._put(kind, key, known, "MODIFIED")
            else:
                self._remove(kind, key)
            if kind is not POD:
                self._end_dependents(meta["uid"])
                self._collect(kind, key)
            return known

    def release(self, uid: str) -> None:
        """The operator of this object has put away all that it had made."""
        with self.changed:
            self.held.discard(uid)
            self._collect_all()

    def changes(
        self, kind: Served, since: int, is_over: Callable[[], bool], wait_s: float
    ) -> Iterator[Change]:
        """Changes after a version as they come, until `is_over()`."""
        with self.changed:
            self.check_version(since)
        while not is_over():
            with self.changed:
                news = [c for c in self._history if c.version > since and c.kind is kind]
                if not news:
                    self.changed.wait(wait_s)
            for change in news:
                since = change.version
                yield change

    def check_version(self, since: int) -> None:
        """Refuse to tell what is forgotten."""
        if (
            self._history
            and since < self._history[0].version - 1
            and len(self._history) == _HISTORY
        ):
            raise statuses.expired(since, self._history[0].version)

    def forget_history(self) -> None:
        """As if the store had been compacted: every earlier version is too old to watch from."""
        with self.changed:
            self.version += 2
            filler = Change(self.version, EVENT, "COMPACTED", {})
            self._history = [filler] * _HISTORY

    def _check_place(self, kind: Served, namespace: str, body: Object) -> None:
        meta = body["metadata"]
        if kind.namespaced and namespace not in self.namespaces:
            raise statuses.not_found("namespaces", "", namespace)
        if kind.namespaced and meta.setdefault("namespace", namespace) != namespace:
            raise statuses.bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
        if (body.get("apiVersion"), body.get("kind")) != (kind.api_version, kind.kind):
            raise statuses.bad_request(
                f"the object provided is unrecognized: {body.get('apiVersion')} {body.get('kind')}"
            )
        if not meta.get("name"):
            raise statuses.invalid(kind.kind, kind.group, "", ["metadata.name: Required value"])

    def _put(self, kind: Served, key: Key, item: Object, change: str) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._items[kind][key] = item
        self._announce(kind, change, item)

    def _remove(self, kind: Served, key: Key) -> None:
        item = self._items[kind].pop(key)
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._announce(kind, "DELETED", item)
        self._end_dependents(item["metadata"]["uid"])
        self._collect_all()

    def _announce(self, kind: Served, change: str, item: Object) -> None:
        news = Change(self.version, kind, change, copy.deepcopy(item))
        self._history = [*self._history, news][-_HISTORY:]
        self.changed.notify_all()
        for listener in self.on_change:
            listener(news)

    def _dependents(self, uid: str) -> list[tuple[Served, Key]]:
        return [
            (kind, key)
            for kind, items in self._items.items()
            for key, item in items.items()
            if any(o["uid"] == uid for o in item["metadata"].get("ownerReferences", []))
        ]

    def _end_dependents(self, uid: str) -> None:
        """What the garbage collector does: what an object owned goes with it."""
        for kind, (namespace, name) in self._dependents(uid):
            self.delete(kind, namespace, name, {})

    def _collect_all(self) -> None:
        for kind in KINDS:
            for key in list(self._items[kind]):
                self._collect(kind, key)

    def _collect(self, kind: Served, key: Key) -> None:
        """Let go of what is being deleted and waits for nothing any more."""
        item = self._items[kind].get(key)
        if item is None or "deletionTimestamp" not in item["metadata"]:
            return
        meta = item["metadata"]
        waits = meta["uid"] in self.held or self._dependents(meta["uid"])
        if _FOREGROUND in meta.get("finalizers", []) and not waits:
            meta["finalizers"] = [each for each in meta["finalizers"] if each != _FOREGROUND]
        if kind is not POD and not meta.get("finalizers"):
            self._remove(kind, key)


def _key(kind: Served, namespace: str, name: str) -> Key:
    return (namespace if kind.namespaced else "", name)


def _merge(known: Object, change: Object) -> Object:
    """RFC 7386."""
    merged = dict(known)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = _merge(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
