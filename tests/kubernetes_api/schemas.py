"""What an object of a kind may hold: the CRD's schema made strict, and the official models.

A real API drops unknown fields unless it is asked to be strict; here it always is. Left out are
the CRD's two rules about fields that only KubeRay's own users of several clusters set.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from kubernetes.client import models
from pydantic import BaseModel, ValidationError

from tests.kubernetes_api import metadata, statuses

Object = dict[str, Any]
_CRDS = {
    "RayCluster": Path(__file__).parent / "crds" / "ray.io_rayclusters.yaml",
    "RayService": Path(__file__).parent / "crds" / "ray.io_rayservices.yaml",
}
_MODELS: dict[str, type[BaseModel]] = {
    "Pod": models.V1Pod,
    "Event": models.CoreV1Event,
    "Node": models.V1Node,
    "Deployment": models.V1Deployment,
    "Service": models.V1Service,
    "PersistentVolume": models.V1PersistentVolume,
    "PersistentVolumeClaim": models.V1PersistentVolumeClaim,
    "ConfigMap": models.V1ConfigMap,
    "ServiceAccount": models.V1ServiceAccount,
    "StatefulSet": models.V1StatefulSet,
    "NetworkPolicy": models.V1NetworkPolicy,
    "Role": models.V1Role,
    "RoleBinding": models.V1RoleBinding,
    "ClusterRole": models.V1ClusterRole,
    "ClusterRoleBinding": models.V1ClusterRoleBinding,
}


def check(kind: str, group: str, version: str, body: Object) -> None:
    """Refuse an object that the real API would refuse or keep only in part.

    Raises:
        Refusal: 400 names unknown fields, 422 bad or missing values.
    """
    meta = body.get("metadata")
    if not isinstance(meta, dict):
        raise statuses.invalid(kind, group, "", ["metadata: Required value"])
    name = meta.get("name", "")
    unknown, causes = _faults(kind, body)
    causes += metadata.faults(meta)
    if unknown:
        raise statuses.unknown_fields(kind, version, unknown)
    if causes:
        raise statuses.invalid(kind, group, name, causes)


def _faults(kind: str, body: Object) -> tuple[list[str], list[str]]:
    """Unknown fields, and other causes to refuse the object."""
    if kind in _MODELS:
        return _faults_by_model(_MODELS[kind], body, "")
    unknown, causes = _faults_by_model(models.V1ObjectMeta, body["metadata"], "metadata")
    if kind not in _CRDS:  # Kueue's: only read here, never made by Ariadne
        return unknown, causes
    for error in validator(kind).iter_errors(body):
        place = ".".join(str(part) for part in error.absolute_path)
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = error.schema.get("properties", {})
            unknown += [f"{place}.{key}".lstrip(".") for key in error.instance.keys() - known]
        else:
            causes.append(f"{place}: {error.message}")
    return sorted(unknown), [*causes, *_duplicates(validator(kind).schema, body, "")]


def _duplicates(schema: Any, value: Any, place: str) -> list[str]:
    """Entries that a list with keys, or a set, holds twice."""
    found = []
    if isinstance(value, dict):
        for key, each in value.items():
            below = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if isinstance(below, dict):
                found += _duplicates(below, each, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        item = schema["items"]
        known: list[Any] = []
        for number, each in enumerate(value):
            identity = _identity(schema, item, each)
            if identity is not None and identity in known:
                found.append(f"{place}[{number}]: Duplicate value: {identity}")
            known.append(identity)
            found += _duplicates(item, each, f"{place}[{number}]")
    return found


def _identity(schema: Object, item: Object, entry: Any) -> Any:
    """By what an entry is told from others; None in a list that may repeat itself."""
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return entry
        case "map":
            fields = item.get("properties", {})
            keys = schema["x-kubernetes-list-map-keys"]
            return {key: entry.get(key, fields.get(key, {}).get("default")) for key in keys}
    return None


def _faults_by_model(
    model: type[BaseModel], body: Object, place: str
) -> tuple[list[str], list[str]]:
    unknown, causes = [], []
    try:
        kept = model.model_validate(body).model_dump(by_alias=True, exclude_unset=True)
    except ValidationError as error:
        for each in error.errors():
            where = ".".join([*filter(None, [place]), *(str(part) for part in each["loc"])])
            into = unknown if each["type"] == "extra_forbidden" else causes
            into.append(where if into is unknown else f"{where}: {each['msg']}")
    else:
        unknown = _misspelt(body, kept, place)
    return unknown, causes


def _misspelt(given: Any, kept: Any, place: str) -> list[str]:
    """The models also take Python's spelling of a field, which the API does not know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        names = {name: name for name in given}
        return [
            fault
            for name in names
            for fault in (
                _misspelt(given[name], kept[name], f"{place}.{name}".lstrip("."))
                if name in kept
                else [f"{place}.{name}".lstrip(".")]
            )
        ]
    if isinstance(given, list) and isinstance(kept, list):
        pairs = zip(given, kept, strict=True)
        return [f for n, (a, b) in enumerate(pairs) for f in _misspelt(a, b, f"{place}[{n}]")]
    return []


@cache
def validator(kind: str) -> Draft202012Validator:
    """The stored version of KubeRay's CRD of the kind, with no room for unknown fields."""
    crd, version, schema = _stored(kind)
    if kind == "RayService":
        cluster = _stored("RayCluster")[2]["properties"]
        schema["properties"]["spec"]["properties"]["rayClusterConfig"] = cluster["spec"]
        status = schema["properties"]["status"]["properties"]
        for which in ("activeServiceStatus", "pendingServiceStatus"):
            status[which]["properties"]["rayClusterStatus"] = cluster["status"]
    _close(schema)
    schema["properties"]["apiVersion"]["enum"] = [f"{crd['spec']['group']}/{version['name']}"]
    schema["properties"]["kind"]["enum"] = [crd["spec"]["names"]["kind"]]
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return Draft202012Validator(schema)


def _stored(kind: str) -> tuple[Object, Object, Object]:
    """CRD, version and schema."""
    crd = yaml.load(_CRDS[kind].read_text(), yaml.CSafeLoader)
    version = next(each for each in crd["spec"]["versions"] if each["storage"])
    return crd, version, version["schema"]["openAPIV3Schema"]


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for each in schema:
            _close(each)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("properties"), dict) and not schema.get(
        "x-kubernetes-preserve-unknown-fields"
    ):
        schema.setdefault("additionalProperties", False)
    if schema.get("format") == "int32":
        schema |= {"minimum": -(2**31), "maximum": 2**31 - 1} | schema
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    for each in list(schema.values()):
        _close(each)
