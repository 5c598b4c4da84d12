"""Stages that cannot do what they are asked to: one line, before anything is started."""

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.loader import load_config
from flows.host import host
from flows.rollback import rollback
from tasks import check
from tasks.backends.protocols import Image
from tasks.evaluate import evaluate
from tasks.preflight import room
from tasks.preflight.probe import probe_image
from tasks.preflight.stage import check_before
from tasks.run_dir import create_run, open_run
from tests.fakes import CLUSTER, IMAGE
from tests.samples import commit_checkpoint, make_config, make_context, reason, write_adapter

Usage = namedtuple("Usage", "total used free")


def test_an_unknown_run_and_an_unknown_step_list_those_that_exist(tmp_path: Path) -> None:
    assert reason(lambda: open_run(tmp_path, "nigth")) == "no run 'nigth'; there are: none yet"
    for name in ("night", "day"):
        create_run(tmp_path / "runs", make_config(tmp_path), IMAGE.digest, name)
    line = reason(lambda: open_run(tmp_path / "runs", "nigth"))
    assert line == "no run 'nigth'; there are: day, night"
    context = make_context(tmp_path)
    run_id = context.run.run_id
    line = reason(lambda: context.run.adapter(3))
    assert line == f"run {run_id} has no adapter of step 3; it has: none yet"
    for step in (10, 2):
        write_adapter(context, step)
    line = reason(lambda: context.run.adapter(3))
    assert line == f"run {run_id} has no adapter of step 3; it has: 2, 10"


def test_a_disk_without_room_for_the_checkpoints_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path, train__keep_checkpoints=2)
    monkeypatch.setattr(room, "checkpoint_bytes", lambda _: 1000)
    free = 4 * 1000  # two newest, the best, the one being written
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))
    with disable_run_logger():
        check_before.fn(context)
        free -= 1
        line = reason(lambda: check_before.fn(context))
    assert line.startswith("preflight refuses the run: disk: the planned checkpoints need ")
    assert line.endswith("make room, or lower train.keep_checkpoints")
    assert [path.name for path in context.run.folder.iterdir()] == ["run.json"]


def test_checkpoints_that_are_there_need_no_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path, train__keep_checkpoints=2)
    monkeypatch.setattr(room, "checkpoint_bytes", lambda _: 1000)
    for step in (2, 4):
        commit_checkpoint(context.run.checkpoints, step, attempt=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 2 * 1000))
    with disable_run_logger():
        check_before.fn(context)
        commit_checkpoint(context.run.checkpoints, 6, attempt=1)  # the last step
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 0))
        check_before.fn(context)


def test_the_size_of_a_checkpoint_is_known_from_the_shapes_of_the_base() -> None:
    """The tiny model's adapter of rank 32 has 196,608 weights; the vision tower has none."""
    assert check.checkpoint_bytes(load_config("local")) == 4 * 4 * 196_608


def test_what_the_code_of_the_image_refuses_is_refused_with_its_last_line(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    program = tmp_path / "app" / "containers" / "trainer" / "preflight_main.py"
    program.parent.mkdir(parents=True)
    program.write_text("import sys; sys.exit('Traceback\\n  File\\nSkyRL refuses it')")
    image = Image(digest=IMAGE.digest, python=sys.executable, app=str(tmp_path / "app"))
    assert reason(lambda: probe_image.fn(context, image)) == "SkyRL refuses it"


def test_an_adapter_of_another_base_is_not_played(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    adapter = write_adapter(context, 2, base_digest="f" * 64)
    with disable_run_logger():
        line = reason(lambda: evaluate.fn(context, IMAGE, adapter))
    assert "was trained on another base (ffffffffffff) than" in line
    assert context.backends.jobs(CLUSTER).submitted == []
    assert not (context.run.folder / "evals").exists()


def test_hosting_what_was_not_evaluated_names_the_flow_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path)
    home = context.home
    monkeypatch.setenv("ARIADNE_HOME", str(home.root))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    write_adapter(context, 2)
    line = reason(lambda: host.fn(context.run.run_id, 2))
    assert line == (
        f"adapter step_2 of run {context.run.run_id} was not evaluated: "
        "run the deployment evaluate/evaluate for it first"
    )
    assert not list(home.hosting.iterdir()) and not list(home.programs.iterdir())
    shutil.rmtree(home.runtime)


def test_a_rollback_with_nothing_before_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARIADNE_HOME", str(tmp_path / "home"))
    line = reason(rollback.fn)
    assert line == "nothing to roll back to: no other adapter was hosted before"
    assert not (tmp_path / "home").exists()
