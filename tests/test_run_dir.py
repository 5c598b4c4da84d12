"""The run directory: what training depends on names it, and what it holds is read with care."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.jobs import MetricsLine
from configs.mazes import load_maze_set
from tasks.check import train_job
from tasks.run_dir import Run, check_base_model, create_run, open_run
from tests.fakes import IMAGE
from tests.samples import commit_checkpoint, make_config, make_context, train_step
from tests.test_maze_sets import changed_set, move_a_start


def run_of(folder: Path, image_digest: str = IMAGE.digest, **overrides: Any) -> Run:
    return create_run(folder / "runs", make_config(folder, **overrides), image_digest)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_context(tmp_path).run


def test_the_same_inputs_meet_in_the_same_folder(tmp_path: Path) -> None:
    first, second = run_of(tmp_path), run_of(tmp_path)
    assert first == second
    assert first.run_id == f"smoke-{first.file.identity[:10]}"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [first.run_id]


def test_an_opened_run_is_the_run_that_was_made(tmp_path: Path) -> None:
    made = run_of(tmp_path)
    assert open_run(tmp_path / "runs", made.run_id) == made


def test_the_same_base_model_at_another_place_is_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    moved = make_config(tmp_path / "elsewhere").model.path
    assert run_of(tmp_path, model__path=str(moved)).run_id == run_of(tmp_path).run_id


@pytest.mark.parametrize(
    "change",
    [
        {"train__steps": 7},
        {"train__seed": 2},
        {"train__learning_rate": 2e-3},
        {"train__lora.rank": 8},
        {"train__device": "cuda"},
        {"mazes__cell_px": 9},
        {"mazes__max_turns": 19},
        {"image_digest": "2" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_that_training_sees_makes_another_run(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    assert run_of(tmp_path, **change).run_id != run_of(tmp_path).run_id


def test_other_mazes_make_another_run(tmp_path: Path) -> None:
    other = changed_set(tmp_path, move_a_start)
    assert run_of(tmp_path, mazes__test_set=str(other)).run_id != run_of(tmp_path).run_id


def test_the_same_mazes_laid_out_differently_are_the_same_run(tmp_path: Path) -> None:
    same = changed_set(tmp_path, lambda content: None)
    assert run_of(tmp_path, mazes__test_set=str(same)).run_id == run_of(tmp_path).run_id


@pytest.mark.parametrize(
    "change",
    [
        {"evaluate__max_action_tokens": 9},
        {"evaluate__concurrency": 1},
        {"host__port": 9000},
        {"host__adapter_name": "another"},
        {"cluster__num_workers": 2},
        {"cluster__start_timeout_s": 99},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_of_other_stages_is_the_same_run_with_the_later_settings(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    before, after = run_of(tmp_path), run_of(tmp_path, **change)
    assert after.run_id == before.run_id
    assert after.config != before.config
    assert open_run(tmp_path / "runs", before.run_id).config == after.config


def add_a_weight(base: Path) -> None:
    (base / "more.safetensors").write_bytes((base / "model.safetensors").read_bytes())


def change_a_weight(base: Path) -> None:
    weights = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(weights[:-1] + b"\1")


def change_the_chat_template(base: Path) -> None:
    (base / "chat_template.jinja").write_text("{{ messages }}")


@pytest.mark.parametrize("change", [add_a_weight, change_a_weight, change_the_chat_template])
def test_another_base_model_makes_another_run(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    before = run_of(tmp_path)
    change(tmp_path / "base")
    after = run_of(tmp_path)
    assert after.run_id != before.run_id
    assert after.file.base_digest != before.file.base_digest


def test_the_card_of_the_base_model_does_not_count(tmp_path: Path) -> None:
    base = make_config(tmp_path).model.path
    before = check_base_model(base)
    (base / "README.md").write_text("A model.")
    assert check_base_model(base) == before


def test_a_run_knows_the_mazes_it_was_made_for(run: Run) -> None:
    assert run.mazes() == load_maze_set(run.config.mazes.test_set)
    assert run.file.mazes_digest == run.mazes().digest


def test_a_run_that_has_not_begun_has_no_steps(run: Run) -> None:
    assert (run.steps(), run.committed_step(), run.adapter_steps()) == ([], 0, [])


def line(step: int, attempt: int) -> str:
    values = {"loss": float(attempt)}
    made = MetricsLine(step=step, attempt=attempt, wall_time_ms=1, values=values)
    return made.model_dump_json()


def test_a_step_trained_again_counts_once_with_its_later_line(run: Run) -> None:
    lines = [line(1, 1), line(2, 1), line(3, 1), line(2, 2), line(3, 2), line(4, 2)]
    run.metrics.write_text("\n".join(lines) + "\n")
    assert [(each.step, each.attempt) for each in run.steps()] == [(1, 1), (2, 2), (3, 2), (4, 2)]


@pytest.mark.parametrize("torn", [line(2, 1)[:20], "", "\0\0\0\0", '{"step": 2}'])
def test_a_torn_last_line_is_no_step(run: Run, torn: str) -> None:
    run.metrics.write_text(line(1, 1) + "\n" + torn)
    assert [each.step for each in run.steps()] == [1]


def test_what_follows_a_torn_line_counts(run: Run) -> None:
    run.metrics.write_text("\n".join([line(1, 1), line(2, 1)[:20], line(2, 2)]) + "\n")
    assert [(each.step, each.attempt) for each in run.steps()] == [(1, 1), (2, 2)]


def test_the_newest_checkpoint_with_a_marker_is_where_a_run_goes_on(run: Run) -> None:
    for step in (2, 10, 4):
        commit_checkpoint(run.checkpoints, step, attempt=1)
    (run.checkpoints / "global_step_12").mkdir()
    assert run.committed_step() == 10
    assert run.num_checkpoints() == 3


@pytest.mark.parametrize("damaged", [b"", b'{"step": 10', b"\xff\xfe", b"{}"])
def test_a_marker_that_cannot_be_read_does_not_count(run: Run, damaged: bytes) -> None:
    commit_checkpoint(run.checkpoints, 4, attempt=1)
    newer = commit_checkpoint(run.checkpoints, 10, attempt=1)
    (newer / "COMMITTED.json").write_bytes(damaged)
    assert run.committed_step() == 4


def test_adapters_are_found_by_step_once_they_have_a_manifest(run: Run) -> None:
    for step in range(1, 5):
        train_step(train_job(run, attempt=1), step)
    (run.adapters / "step_4" / "manifest.json").unlink()
    (run.adapters / ".step_6").mkdir()
    assert run.adapter_steps() == [2]
    assert run.adapter(2) == run.adapters / "step_2"
