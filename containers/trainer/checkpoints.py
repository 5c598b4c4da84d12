"""Checkpoints that are complete or do not exist: COMMITTED.json, written last, says which.

The trainer writes its files straight into global_step_N. A commit hashes them, flushes files
and folders to the disk and only then writes COMMITTED.json, so whatever a crash leaves half-written
has no such file and is not resumed from.
"""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from loguru import logger

from configs.digests import digest_of_file
from configs.jobs import Committed

MARKER = "COMMITTED.json"


def commit(folder: Path, step: int, attempt: int, world_size: int) -> Committed:
    """Declare `folder` complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    committed = Committed(
        step=step,
        attempt=attempt,
        world_size=world_size,
        files={str(path.relative_to(folder)): digest_of_file(path) for path in files},
        sizes={str(path.relative_to(folder)): path.stat().st_size for path in files},
    )
    for path in [*files, *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        flush(path)
    write_atomically(folder / MARKER, committed.model_dump_json(indent=1))
    flush(folder.parent)
    return committed


def newest(checkpoints: Path) -> Path | None:
    """The newest checkpoint that verifies; older ones are tried in turn, saying why."""
    for folder in sorted(checkpoints.glob("global_step_*"), key=step_of, reverse=True):
        fault = find_fault(folder)
        if fault is None:
            return folder
        logger.warning(f"not resuming from {folder.name}: {fault}")
    return None


def find_fault(folder: Path) -> str | None:
    """What keeps this checkpoint from being resumed, or None."""
    try:
        committed = Committed.model_validate_json((folder / MARKER).read_text())
    except FileNotFoundError:
        return "it was never completed"
    except ValueError:  # neither our JSON nor even text
        return f"its {MARKER} is damaged"
    for name, digest in committed.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != committed.sizes[name] or digest_of_file(path) != digest:
            return f"{name} is damaged"
    return None


def drop_newer(checkpoints: Path, kept: Path | None) -> None:
    """Remove what lies ahead of the checkpoint a run goes on from: it will be written anew."""
    limit = step_of(kept) if kept else -1
    for folder in checkpoints.glob("global_step_*"):
        if step_of(folder) > limit:
            logger.warning(f"removing {folder.name}, which is ahead of the point of resume")
            remove(folder)


def prune(checkpoints: Path, num_kept: int, protected: Collection[int]) -> None:
    """Keep the newest `num_kept` committed checkpoints and those of the protected steps."""
    committed = [path.parent for path in checkpoints.glob(f"global_step_*/{MARKER}")]
    for folder in sorted(committed, key=step_of)[:-num_kept]:
        if step_of(folder) not in protected:
            remove(folder)


def committed_steps(checkpoints: Path) -> list[int]:
    """Steps with a committed checkpoint, in order."""
    return sorted(step_of(path.parent) for path in checkpoints.glob(f"global_step_*/{MARKER}"))


def step_of(folder: Path) -> int:
    """N of global_step_N or step_N."""
    return int(folder.name.rpartition("_")[2])


def remove(folder: Path) -> None:
    """Delete a checkpoint; from the first moment on it no longer counts as complete."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing, and have it on the disk on return."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text + "\n")
    flush(temporary)
    temporary.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
