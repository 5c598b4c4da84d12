"""Content digests: what a file, a folder or a record is, whatever its name and age."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def digest_of_file(path: Path) -> str:
    """sha256 of the bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_files(files: Iterable[Path], root: Path) -> str:
    """sha256 over relative names and contents; the order of `files` does not matter."""
    listing = {str(path.relative_to(root)): digest_of_file(path) for path in files}
    return digest_of(listing)


def digest_of(value: Any) -> str:
    """sha256 of a JSON value or of pydantic models inside one, independent of key order."""

    def plain(item: Any) -> Any:
        if isinstance(item, BaseModel):
            return item.model_dump(mode="json")
        if isinstance(item, Path):
            return str(item)
        raise TypeError(f"{type(item).__name__} has no canonical form")

    canonical = json.dumps(value, sort_keys=True, default=plain, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
