"""Runs in an object store: what was measured and decided, for when the machine is gone.

`runs/<run>/<time>-<digest>.zip` holds all that a run has written but checkpoints, adapters and
scratch; a store shows an object whole or not at all. The adapter that serves is in the store by
itself (`publication`), and checkpoints are worth nothing without the machines that go on from them.
"""

import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.digests import digest_of_files
from tasks.backends.protocols import ObjectStore
from tasks.context import Context
from tasks.run_dir import Run, check_run_id

_PARTS = ("run.json", "metrics.jsonl", "records", "attempts", "evals")


@task(task_run_name="archive", cache_policy=NO_CACHE, retries=3, retry_delay_seconds=10)
def archive_run(context: Context) -> None:
    """Keep the run in the store of the profile, where it has one.

    Raises:
        RuntimeError: the store is away or refuses.
    """
    if context.backends.store:
        get_run_logger().info("archive: %s", archive(context.backends.store, context.run))


def archive(store: ObjectStore, run: Run) -> str:
    """Keep the run as it is now, unless its newest archive is the same; where it is.

    Raises:
        RuntimeError: the store refuses.
    """
    files = list(_files(run.folder))
    digest = digest_of_files(files, run.folder)[:16]
    newest = _newest(store, run.run_id)
    if newest and newest.endswith(f"-{digest}.zip"):
        return newest
    key = f"runs/{run.run_id}/{datetime.now(UTC):%Y%m%dT%H%M%S}-{digest}.zip"
    with TemporaryDirectory(prefix="ariadne-archive-") as hidden:
        file = Path(hidden) / "run.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
            for path in files:
                out.write(path, path.relative_to(run.folder))
        store.upload(key, file)
    return key


def restore(store: ObjectStore, run_id: str, runs: Path) -> Path:
    """The newest archive of the run as a new folder of `runs`.

    Raises:
        ValueError: it is no name of a run, the run is there, or the archive is damaged.
        LookupError: the store has no archive of it.
        RuntimeError: the store refuses.
    """
    check_run_id(run_id)
    folder = runs / run_id
    if folder.exists():
        raise ValueError(f"run {run_id} is there: {folder}")
    key = _newest(store, run_id)
    if key is None:
        known = sorted({key.split("/")[1] for key in store.keys("runs/")})
        raise LookupError(f"no run {run_id} in the store; there are: {known or 'none yet'}")
    runs.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=runs, prefix=".restore-") as hidden:
        file, whole = Path(hidden) / "run.zip", Path(hidden) / run_id
        store.download(key, file)
        _unpack(file, whole, key)
        if f"-{digest_of_files(_files(whole), whole)[:16]}." not in key:
            raise ValueError(f"{key} is damaged: its files are not those that it was made of")
        whole.rename(folder)
    return folder


def _unpack(file: Path, folder: Path, key: str) -> None:
    try:
        with zipfile.ZipFile(file) as packed:
            for name in packed.namelist():
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or path.parts[0] not in _PARTS:
                    raise ValueError(f"{key} is damaged: {name!r} is no file of a run")
            packed.extractall(folder)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{key} is damaged: {error}") from None


def _files(folder: Path) -> Iterator[Path]:
    """What is archived; files on their way, which have hidden names, are not."""
    for part in _PARTS:
        path = folder / part
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            if each.is_file() and not each.name.startswith("."):
                yield each


def _newest(store: ObjectStore, run_id: str) -> str | None:
    return max(store.keys(f"runs/{run_id}/"), default=None)
