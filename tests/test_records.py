"""Records: whole or absent, of exactly the inputs that are asked for."""

import os
from pathlib import Path
from typing import Any

import pytest

from tasks import records
from tasks.records import ImageRecord, Record, TrainRecord, write_whole
from tests.fakes import IMAGE


def image_record(inputs: str = "a" * 64) -> ImageRecord:
    return ImageRecord(inputs=inputs, image=IMAGE)


def train_record(adapter: Path) -> TrainRecord:
    return TrainRecord(
        inputs="a" * 64, step=6, attempts=2, seconds=1.5, adapter=adapter, adapter_digest="b" * 64
    )


def fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("record", [image_record(), train_record(Path("/runs/night/step_6"))])
def test_a_record_is_found_as_it_was_saved(tmp_path: Path, record: Record) -> None:
    folder = tmp_path / "records"
    records.save(record, folder)
    assert records.find(type(record), record.inputs, folder) == record
    assert [path.name for path in folder.iterdir()] == [f"{record.stage}.json"]


def test_a_record_that_was_never_saved_is_absent(tmp_path: Path) -> None:
    assert records.find(ImageRecord, "a" * 64, tmp_path / "none") is None


def test_a_record_of_other_inputs_is_absent(tmp_path: Path) -> None:
    records.save(image_record(), tmp_path)
    assert records.find(ImageRecord, "b" * 64, tmp_path) is None


def test_the_later_record_of_a_stage_replaces_the_earlier(tmp_path: Path) -> None:
    records.save(image_record("a" * 64), tmp_path)
    records.save(image_record("b" * 64), tmp_path)
    assert records.find(ImageRecord, "a" * 64, tmp_path) is None
    assert records.find(ImageRecord, "b" * 64, tmp_path) == image_record("b" * 64)


def test_a_record_cut_off_at_any_byte_is_absent(tmp_path: Path) -> None:
    """Also in the middle of a letter of two bytes."""
    record = train_record(Path("/läufe/nächte/step_6"))
    records.save(record, tmp_path)
    whole = (tmp_path / "train.json").read_bytes().strip()
    for length in range(len(whole)):
        (tmp_path / "train.json").write_bytes(whole[:length])
        assert records.find(TrainRecord, record.inputs, tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"\0" * 200, b"\xff\xfe", b"{}", b"[]"])
def test_a_record_of_garbage_is_absent(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "image.json").write_bytes(content)
    assert records.find(ImageRecord, "a" * 64, tmp_path) is None


def test_a_record_of_another_version_is_absent(tmp_path: Path) -> None:
    text = image_record().model_dump_json()
    (tmp_path / "image.json").write_text(text[:-1] + ', "colour": "red"}')
    assert records.find(ImageRecord, "a" * 64, tmp_path) is None


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "replace")])
def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    path = tmp_path / "run.json"
    write_whole(path, "old")
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
