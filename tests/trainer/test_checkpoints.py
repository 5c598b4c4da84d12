"""Checkpoints: what a crash or a bad disk left behind is not resumed from, and why is logged."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loguru import logger

from configs.jobs import Committed
from containers.trainer import checkpoints
from containers.trainer.checkpoints import (
    MARKER,
    commit,
    committed_steps,
    drop_newer,
    find_fault,
    newest,
    prune,
)
from containers.trainer.recorder import append_line

WEIGHTS = "policy/model.pt"


@pytest.fixture
def log() -> Iterator[list[str]]:
    """The messages that were logged."""
    messages: list[str] = []
    sink = logger.add(lambda message: messages.append(message.record["message"]))
    yield messages
    logger.remove(sink)


def save(folder: Path, step: int) -> Path:
    """A checkpoint as SkyRL leaves it: files, no marker."""
    checkpoint = folder / f"global_step_{step}"
    (checkpoint / "policy").mkdir(parents=True)
    (checkpoint / WEIGHTS).write_bytes(b"weights" * step)
    (checkpoint / "data.pt").write_bytes(b"position")
    return checkpoint


def save_and_commit(folder: Path, *steps: int) -> list[Path]:
    saved = [save(folder, step) for step in steps]
    for checkpoint, step in zip(saved, steps, strict=True):
        commit(checkpoint, step, attempt=1, world_size=2)
    return saved


def steps_in(folder: Path) -> list[int]:
    return sorted(checkpoints.step_of(path) for path in folder.glob("global_step_*"))


def test_the_newest_committed_checkpoint_is_resumed_by_number_not_by_name(tmp_path: Path) -> None:
    save_and_commit(tmp_path, 2, 9, 10)
    assert newest(tmp_path) == tmp_path / "global_step_10"


def test_a_checkpoint_that_was_never_committed_is_ignored(tmp_path: Path, log: list[str]) -> None:
    save_and_commit(tmp_path, 1)
    save(tmp_path, 2)
    assert newest(tmp_path) == tmp_path / "global_step_1"
    assert log == ["not resuming from global_step_2: it was never completed"]


def test_without_any_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "missing") is None


def damage_a_file(checkpoint: Path) -> None:
    content = (checkpoint / WEIGHTS).read_bytes()
    (checkpoint / WEIGHTS).write_bytes(b"W" + content[1:])


def cut_a_file_short(checkpoint: Path) -> None:
    content = (checkpoint / WEIGHTS).read_bytes()
    (checkpoint / WEIGHTS).write_bytes(content[:-1])


def delete_a_file(checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).unlink()


def cut_the_marker_short(checkpoint: Path) -> None:
    content = (checkpoint / MARKER).read_text()
    (checkpoint / MARKER).write_text(content[: len(content) // 2])


def garble_the_marker(checkpoint: Path) -> None:
    (checkpoint / MARKER).write_bytes(b"\xff\xfe\x00")


def empty_the_marker(checkpoint: Path) -> None:
    (checkpoint / MARKER).write_text("")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damage_a_file, f"{WEIGHTS} is damaged"),
        (cut_a_file_short, f"{WEIGHTS} is damaged"),
        (delete_a_file, f"{WEIGHTS} is missing"),
        (cut_the_marker_short, f"its {MARKER} is damaged"),
        (empty_the_marker, f"its {MARKER} is damaged"),
        (
            garble_the_marker,
            f"its {MARKER} is damaged",
        ),
    ],
)
def test_a_harmed_checkpoint_falls_back_to_the_older_one_and_says_why(
    tmp_path: Path, log: list[str], harm: Callable[[Path], None], reason: str
) -> None:
    older, newer = save_and_commit(tmp_path, 3, 4)
    harm(newer)
    assert newest(tmp_path) == older
    assert log == [f"not resuming from global_step_4: {reason}"]


def test_a_commit_lists_every_file_and_can_be_repeated(tmp_path: Path) -> None:
    (checkpoint,) = save_and_commit(tmp_path, 5)
    committed = Committed.model_validate_json((checkpoint / MARKER).read_text())
    assert (committed.step, committed.attempt, committed.world_size) == (5, 1, 2)
    assert committed.sizes == {WEIGHTS: 35, "data.pt": 8}
    assert committed.files.keys() == committed.sizes.keys()
    assert commit(checkpoint, 5, attempt=1, world_size=2) == committed
    assert find_fault(checkpoint) is None


def test_the_marker_is_absent_while_hashing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save(tmp_path, 1)

    def fail(path: Path) -> str:
        raise OSError(f"{path}: the disk is gone")

    monkeypatch.setattr(checkpoints, "digest_of_file", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        commit(checkpoint, 1, attempt=1, world_size=2)
    assert find_fault(checkpoint) == "it was never completed"


def test_everything_is_on_the_disk_before_the_marker_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save(tmp_path, 1)
    content = {checkpoint, *checkpoint.rglob("*")}
    flush, flushed = checkpoints.flush, set()

    def watched(path: Path) -> None:
        flush(path)
        if not (checkpoint / MARKER).exists():
            flushed.add(path)

    monkeypatch.setattr(checkpoints, "flush", watched)
    commit(checkpoint, 1, attempt=1, world_size=2)
    assert len(content) == 4
    assert content <= flushed


def test_prune_keeps_the_newest_committed_ones_and_touches_no_other(tmp_path: Path) -> None:
    save_and_commit(tmp_path, 2, 9, 10, 11)
    save(tmp_path, 1)
    prune(tmp_path, num_kept=2, protected=())
    assert steps_in(tmp_path) == [1, 10, 11]
    assert newest(tmp_path) == tmp_path / "global_step_11"
    prune(tmp_path, num_kept=5, protected=())
    assert steps_in(tmp_path) == [1, 10, 11]


def test_prune_leaves_the_protected_steps(tmp_path: Path) -> None:
    save_and_commit(tmp_path, 2, 3, 4, 5)
    prune(tmp_path, num_kept=1, protected={3})
    assert steps_in(tmp_path) == committed_steps(tmp_path) == [3, 5]


def test_what_lies_ahead_of_the_point_of_resume_is_removed(tmp_path: Path, log: list[str]) -> None:
    save_and_commit(tmp_path, 1, 2)
    save(tmp_path, 3)
    drop_newer(tmp_path, tmp_path / "global_step_2")
    assert steps_in(tmp_path) == [1, 2]
    assert log == ["removing global_step_3, which is ahead of the point of resume"]
    drop_newer(tmp_path, None)
    assert steps_in(tmp_path) == []


def test_a_removal_that_is_cut_short_leaves_no_complete_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint,) = save_and_commit(tmp_path, 1)

    def fail(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.remove(checkpoint)
    assert (checkpoint / WEIGHTS).exists()
    assert newest(tmp_path) is None


def test_a_line_is_appended_and_a_torn_last_line_closed_first(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_line(path, "one")
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"
    path.write_text("one\ntw")
    append_line(path, "three")
    append_line(path, "four")
    assert path.read_text() == "one\ntw\nthree\nfour\n"
