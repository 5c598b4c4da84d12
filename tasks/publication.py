"""Adapters in an object store: what serves elsewhere, or is kept when a machine goes.

`adapters/<digest>/` holds the files of one adapter, its manifest last: where the manifest is, all
is. The same adapter is published once, by whichever run. One that nobody needs any more is first
given notice (`retired.json`) and goes once its days have passed, the manifest first; until then
whoever has just begun to load it finds it whole.
"""

import json
import time
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from configs.digests import digest_of_file
from configs.jobs import AdapterManifest
from tasks.adapters import read_intact
from tasks.backends.protocols import ObjectStore

FOLDER = "adapters"
"""Below the store's root. Ray Serve reads adapters from here, by their digest."""
_MANIFEST = "manifest.json"
_NOTICE = "retired.json"
_DAY_S = 86_400


def publish(store: ObjectStore, adapter: Path) -> str:
    """Have the adapter in the store; where it is in there.

    Raises:
        ValueError: the folder is not what its manifest says.
        RuntimeError: the store refuses.
    """
    manifest = read_intact(adapter)
    if manifest is None:
        raise ValueError(f"{adapter} is damaged: it is not published")
    place = _place(manifest.digest)
    if store.read(place + _MANIFEST) is None:
        for name in manifest.files:
            store.upload(place + name, adapter / name)
        store.create(place + _MANIFEST, (adapter / _MANIFEST).read_bytes())
    store.delete(place + _NOTICE)  # it is wanted again
    return place


def published(store: ObjectStore) -> list[str]:
    """Digests of the adapters that are there as a whole."""
    keys = store.keys(f"{FOLDER}/")
    return [key.split("/")[1] for key in keys if key.endswith(f"/{_MANIFEST}")]


def fetch(store: ObjectStore, digest: str, folder: Path) -> AdapterManifest:
    """The adapter in a new folder, every file checked.

    Raises:
        LookupError: the store has no such adapter.
        ValueError: a file is not what the manifest says; no folder is made.
    """
    raw = store.read(_place(digest) + _MANIFEST)
    if raw is None:
        known = ", ".join(each[:12] for each in published(store)) or "none yet"
        raise LookupError(f"no adapter {digest[:12]} in the store; there are: {known}")
    manifest = AdapterManifest.model_validate_json(raw)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as hidden:
        for name, expected in manifest.files.items():
            store.download(_place(digest) + name, Path(hidden) / name)
            if digest_of_file(Path(hidden) / name) != expected:
                raise ValueError(f"adapter {digest[:12]} in the store: {name} is damaged")
        (Path(hidden) / _MANIFEST).write_bytes(raw)
        Path(hidden).rename(folder)
        Path(hidden).mkdir()  # for its owner to remove
    return manifest


def retire(
    store: ObjectStore, wanted: Collection[str], grace_days: float, now_s: float | None = None
) -> list[str]:
    """Give notice to what is not wanted, remove what had it for long enough; what was removed."""
    now_s = time.time() if now_s is None else now_s
    removed = []
    for digest in published(store):
        place = _place(digest)
        if digest in wanted:
            store.delete(place + _NOTICE)
            continue
        store.create(place + _NOTICE, json.dumps({"since_s": now_s}).encode())
        notice = json.loads(store.read(place + _NOTICE) or b"{}")
        if now_s - notice.get("since_s", now_s) >= grace_days * _DAY_S:
            store.delete(place + _MANIFEST)  # from here on it is not there
            for key in store.keys(place):
                store.delete(key)
            removed.append(digest)
    return removed


def _place(digest: str) -> str:
    return f"{FOLDER}/{digest}/"
