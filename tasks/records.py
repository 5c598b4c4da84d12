"""What stages hand to each other and leave behind: frozen records, each written last, atomically.

A record names the digest of the inputs it was made from. A stage looks for the record of its
inputs, asks whether the world still agrees, and only then skips its work.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from tasks.backends.protocols import Cluster, Endpoint, Image


class Record(BaseModel):
    """A finished stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    stage: ClassVar[str]

    inputs: str
    """Digest of everything the result depends on."""


class ImageRecord(Record):
    stage = "image"
    image: Image


class ClusterRecord(Record):
    stage = "cluster"
    cluster: Cluster


class TrainRecord(Record):
    stage = "train"
    step: int
    attempts: int
    seconds: float
    adapter: Path
    adapter_digest: str


class EvaluateRecord(Record):
    stage = "evaluate"
    step: int
    adapter: Path
    adapter_digest: str
    mazes_digest: str
    num_mazes: int
    num_solved_base: int
    num_solved: int
    base_results: Path
    results: Path


class HostRecord(Record):
    stage = "host"
    endpoint: Endpoint
    adapter_name: str
    adapter_digest: str


def save(record: Record, folder: Path) -> None:
    """Write `<stage>.json`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{record.stage}.json", record.model_dump_json(indent=1) + "\n")


def find[AnyRecord: Record](kind: type[AnyRecord], inputs: str, folder: Path) -> AnyRecord | None:
    """The record of exactly these inputs; half-written, older or foreign ones count as absent."""
    try:
        record = kind.model_validate_json((folder / f"{kind.stage}.json").read_text())
    except (FileNotFoundError, ValueError):  # no JSON, not even text, or another shape
        return None
    return record if record.inputs == inputs else None


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    with _written(path, text) as temporary:
        temporary.replace(path)


def write_new(path: Path, text: str) -> None:
    """Write a file, whole, unless there is one.

    Raises:
        FileExistsError: somebody else was first.
    """
    with _written(path, text) as temporary:
        os.link(temporary, path)


@contextmanager
def _written(path: Path, text: str) -> Generator[Path]:
    """A file beside `path` under a name of its own: writers may sit on several machines."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
