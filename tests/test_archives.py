"""Runs go to a store and come back as they were, or not at all."""

import zipfile
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows.__main__ import restore as restore_command
from tasks.archives import archive, archive_run, restore
from tasks.backends.object_store import FileStore
from tasks.context import Context
from tests.samples import make_context, reason, write_adapter


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A run with an evaluation, an adapter and scratch."""
    context = make_context(tmp_path / "home")
    write_adapter(context, 2)
    folder = context.run.folder
    for name in ("evals/abc/summary.json", "records/gate.json", "records/.gate.json.12"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    context.run.scratch("attempt-1")
    return context


def test_a_run_comes_back_without_adapters_and_scratch(
    context: Context, store: FileStore, tmp_path: Path
) -> None:
    archive(store, context.run)
    folder = restore(store, context.run.run_id, tmp_path / "other")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"run.json", "evals/abc/summary.json", "records/gate.json"} <= found
    assert not any(name.startswith(("adapters", "checkpoints", "scratch")) for name in found)
    assert not any("/." in name for name in found)
    for name in found:
        assert (folder / name).read_bytes() == (context.run.folder / name).read_bytes()
    assert [path.name for path in (tmp_path / "other").iterdir()] == [context.run.run_id]


def test_a_run_that_has_not_changed_is_archived_once(context: Context, store: FileStore) -> None:
    first = archive(store, context.run)
    assert archive(store, context.run) == first
    (context.run.folder / "records" / "gate.json").write_text("another decision")
    assert archive(store, context.run) != first
    assert len(store.keys("runs/")) == 2


def test_the_newest_archive_is_the_one_that_comes_back(
    context: Context, store: FileStore, tmp_path: Path
) -> None:
    key = archive(store, context.run)
    older = key.replace("/2", "/1", 1)
    store.create(older, b"no archive at all")
    folder = restore(store, context.run.run_id, tmp_path / "other")
    assert (folder / "records" / "gate.json").read_text() == "records/gate.json"


def test_a_run_that_is_there_is_not_touched(context: Context, store: FileStore) -> None:
    archive(store, context.run)
    runs = context.run.folder.parent
    assert "is there: " in reason(lambda: restore(store, context.run.run_id, runs))


def test_what_is_not_in_the_store_is_said_with_what_is(
    context: Context, store: FileStore, tmp_path: Path
) -> None:
    archive(store, context.run)
    with pytest.raises(LookupError, match=context.run.run_id):
        restore(store, "night", tmp_path / "other")
    assert "run name" in reason(lambda: restore(store, "../night", tmp_path / "other"))


@pytest.mark.parametrize(
    ("name", "says"),
    [("../run.json", "no file of a run"), ("/run.json", "no file of a run"),
     ("scratch/x", "no file of a run"), ("run.json", "its files are not those")],
)  # fmt: skip
def test_an_archive_with_other_files_makes_no_folder(
    context: Context, store: FileStore, tmp_path: Path, name: str, says: str
) -> None:
    key = archive(store, context.run)
    store.delete(key)
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as foreign:
        foreign.writestr(name, "{}")
    store.upload(key, tmp_path / "foreign.zip")
    told = reason(lambda: restore(store, context.run.run_id, tmp_path / "other"))
    assert key in told and "is damaged" in told and says in told
    assert list((tmp_path / "other").iterdir()) == []


def test_bytes_that_are_no_archive_make_no_folder(
    context: Context, store: FileStore, tmp_path: Path
) -> None:
    key = archive(store, context.run)
    store.delete(key)
    store.create(key, b"half of a")
    assert "is damaged" in reason(lambda: restore(store, context.run.run_id, tmp_path / "other"))
    assert list((tmp_path / "other").iterdir()) == []


def test_without_a_store_nothing_is_archived_and_the_command_says_so(context: Context) -> None:
    with disable_run_logger():
        archive_run.fn(context)
    assert "has no section store" in reason(lambda: restore_command("night", "local"))
