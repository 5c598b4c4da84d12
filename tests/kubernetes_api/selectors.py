"""Label and field selectors."""

import re
from typing import Any

from tests.kubernetes_api import statuses

Object = dict[str, Any]
_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "status.phase",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.uid",
)
_SET = re.compile(r"(?P<key>\S+) (?P<how>in|notin) \((?P<values>[^)]*)\)")


def matches(item: Object, labels: str, fields: str) -> bool:
    """Whether both selectors take the object; empty ones take everything."""
    have = item["metadata"].get("labels", {})
    by_label = all(_takes(have.get(_key(part)), part) for part in _parts(labels))
    return by_label and all(_takes(_field(item, _key(p)), p) for p in _parts(fields))


def _parts(selector: str) -> list[str]:
    """Split at the commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _key(part: str) -> str:
    if found := _SET.fullmatch(part):
        return found["key"]
    return re.split(r"!?==?", part)[0].strip().lstrip("!")


def _takes(value: str | None, part: str) -> bool:
    if found := _SET.fullmatch(part):
        named = value in [each.strip() for each in found["values"].split(",")]
        return named if found["how"] == "in" else not named
    if "!=" in part:
        return value != part.partition("!=")[2].strip()
    if "=" in part:
        return value == re.split(r"==?", part, maxsplit=1)[1].strip()
    return value is None if part.startswith("!") else value is not None


def _field(item: Object, path: str) -> str | None:
    if path not in _FIELDS:
        raise statuses.bad_request(f"field label not supported: {path}")
    value: Any = item
    for key in path.split("."):
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, str) else ""
