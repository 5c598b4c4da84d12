"""A store of named objects on a file system that is shared: `file:///fsx/store` or a path."""

import os
import shutil
from pathlib import Path
from uuid import uuid4

from tasks.backends.protocols import check_key


class FileStore:
    """Implements `ObjectStore` in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, key: str, data: bytes) -> bool:
        """Atomic on every file system with hard links, network ones included: of two that create
        the same name one wins."""
        target = self._path(key)
        hidden = self._hidden(target)
        hidden.write_bytes(data)
        _flush(hidden)
        try:
            os.link(hidden, target)
        except FileExistsError:
            return False
        finally:
            hidden.unlink()
        _flush(target.parent)
        return True

    def read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def keys(self, prefix: str) -> list[str]:
        start = self._root / prefix.rpartition("/")[0]
        found = (path.relative_to(self._root) for path in start.rglob("*") if path.is_file())
        return sorted(
            str(path)
            for path in found
            if str(path).startswith(prefix) and not path.name.startswith(".")
        )

    def upload(self, key: str, path: Path) -> None:
        target = self._path(key)
        hidden = self._hidden(target)
        shutil.copyfile(path, hidden)
        _flush(hidden)
        hidden.replace(target)
        _flush(target.parent)

    def download(self, key: str, path: Path) -> None:
        try:
            shutil.copyfile(self._path(key), path)
        except FileNotFoundError:
            raise LookupError(f"{self._root} has no {key}") from None

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _hidden(self, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.with_name(f".{target.name}.{uuid4().hex}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
