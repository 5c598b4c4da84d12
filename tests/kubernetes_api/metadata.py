"""What Kubernetes allows in names, labels and annotations, whatever the kind."""

import re
from typing import Any

Object = dict[str, Any]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_KEY_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_ANNOTATIONS_BYTES = 256 * 1024


def faults(meta: Object) -> list[str]:
    """Causes to refuse an object with this metadata, in the API's words in short."""
    found = []
    name = meta.get("name", "")
    if not _is_subdomain(name):
        found.append(f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain')
    for part in ("labels", "annotations"):
        values = meta.get(part) or {}
        found += [f'metadata.{part}: Invalid value: "{key}"' for key in values if not _is_key(key)]
        found += [
            f'metadata.{part}: Invalid value: "{value}": a string'
            for value in values.values()
            if not isinstance(value, str)
        ]
    found += [
        f'metadata.labels: Invalid value: "{value}": a valid label value'
        for value in (meta.get("labels") or {}).values()
        if value and not _KEY_NAME.fullmatch(str(value))
    ]
    size = sum(len(key) + len(str(v)) for key, v in (meta.get("annotations") or {}).items())
    if size > _ANNOTATIONS_BYTES:
        found.append(f"metadata.annotations: Too long: at most {_ANNOTATIONS_BYTES} bytes")
    return found


def _is_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(_KEY_NAME.fullmatch(name)) and (not slash or _is_subdomain(prefix))


def _is_subdomain(name: str) -> bool:
    return len(name) <= 253 and bool(_SUBDOMAIN.fullmatch(name))
