"""Storage that is full, away or wrong: what is damaged is not resumed from, and nothing is lost."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.conftest import Begin
from tests.chaos.test_kills import Report, ends_undisturbed
from tests.chaos.trial import TRAINER, Facts, Trial


def truncate(checkpoint: Path) -> None:
    (path,) = checkpoint.glob("policy/tensors/*.safetensors")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip_a_byte(checkpoint: Path) -> None:
    (path,) = checkpoint.glob("policy/tensors/*.safetensors")
    with path.open("r+b") as file:
        file.seek(-1000, 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def lose_the_manifest(checkpoint: Path) -> None:
    (checkpoint / "COMMITTED.json").unlink()


def empty_the_manifest(checkpoint: Path) -> None:
    (checkpoint / "COMMITTED.json").write_text("")


HARMS = [truncate, flip_a_byte, lose_the_manifest, empty_the_manifest]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_damaged(
    begin: Begin, undisturbed: Facts, report: Report, harm: Callable[[Path], None]
) -> None:
    trial = begin()
    trial.wait(lambda: trial.is_committed(3))

    def crash_and_damage() -> None:
        trial.kill(TRAINER)
        newest = max(n for n in (3, 4) if trial.is_committed(n))
        harm(trial.checkpoint(newest))

    trial.strike(crash_and_damage)
    assert trial.end() == 0, trial.log.read_text()[-3000:]
    assert trial.facts() == undisturbed
    report(trial.row(f"newest checkpoint: {harm.__name__.replace('_', ' ')}"))


@contextmanager
def small_disk(trial: Trial, megabytes: int) -> Iterator[Path]:
    """Checkpoints on a disk of their own, from before the first of them."""
    folder = trial.folder / "checkpoints"
    trial.wait((trial.folder / "run.json").is_file)
    folder.mkdir(exist_ok=True)
    options = f"size={megabytes}m"
    _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def _refuse_writes(folder: Path) -> None:
    """Whatever is opened by its path from now on is on a read-only mount over the folder; the disk
    itself cannot be made read-only while the trainer has a file of it open."""
    _run("mount", "--bind", str(folder), str(folder))
    _run("mount", "-o", "remount,bind,ro", str(folder))


def test_disk_full(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    with small_disk(trial, 8) as disk:
        assert trial.flow.wait(600) != 0
        text = trial.log.read_text()
        assert "make room" in text or "needs" in text, text[-2000:]
        _run("mount", "-o", "remount,size=200m", str(disk))
        trial.strike(lambda: None)
        trial.flow = trial.start()
        ends_undisturbed(trial, undisturbed, report, "disk full, then room is made")


def test_storage_away(begin: Begin, undisturbed: Facts, report: Report) -> None:
    trial = begin()
    with small_disk(trial, 200) as disk:
        trial.wait(lambda: trial.is_committed(2))
        trial.strike(lambda: _refuse_writes(disk))
        trial.wait(
            lambda: (trial.folder / "attempts" / "1.json").read_text().find('"ended": "') > 0
        )
        _run("umount", str(disk))
        ends_undisturbed(trial, undisturbed, report, "storage refuses writes, then recovers")
