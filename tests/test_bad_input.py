"""Unusable input: one line that says what to do, a failing exit, and nothing half-done."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.loader import ROOT, load_config
from configs.mazes import load_maze_set
from tasks.backends import leftovers
from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tasks.run_dir import create_run, open_run
from tests.fakes import IMAGE
from tests.samples import make_config, reason
from tests.test_maze_sets import (
    changed_set,
    claim_another_size,
    repeat_a_maze,
    wall_the_target_in,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """The home of this process and its children, in which nothing runs."""
    home = Home(tmp_path / "home")
    monkeypatch.setenv("ARIADNE_HOME", str(home.root))
    yield home
    started = leftovers.marked({leftovers.MARK: str(home.root)})
    Supervisord(home).shutdown()
    assert not started
    shutil.rmtree(home.runtime, ignore_errors=True)


def refusal(tmp_path: Path, run_name: str = "", **overrides: Any) -> str:
    """The one line with which a run is refused; no folder is made for it."""
    runs = tmp_path / "runs"
    runs.mkdir(exist_ok=True)
    config = make_config(tmp_path, **overrides)
    before = sorted(tmp_path.rglob("*"))
    line = reason(lambda: create_run(runs, config, IMAGE.digest, run_name))
    assert sorted(tmp_path.rglob("*")) == before
    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--steps", "0"),
            "configs/local.toml: train.steps: Input should be greater than or equal to 1, not 0",
        ),
        (("--profile", "lokal"), "no profile 'lokal': choose one of "),
        (
            ("--run-name", "../other"),
            "run name '../other': use at most 63 lower-case letters, digits and dashes",
        ),
    ],
)
def test_the_command_refuses_in_one_line_and_starts_nothing(
    home: Home, arguments: tuple[str, str], line: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows", "run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"ariadne: {line}")
    assert not home.root.exists() and not home.runtime.exists()


def test_an_unknown_key_is_refused_by_name() -> None:
    line = reason(lambda: load_config("smoke", {"train.stepps": 3}))
    assert line == "configs/smoke.toml: train.stepps: Extra inputs are not permitted"


def test_a_base_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, model__path=str(tmp_path / "none"))
    assert line == f"base model {tmp_path}/none has no config.json: is it a checkpoint?"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def overwrite_the_start(path: Path) -> None:
    path.write_bytes(b"<html><body>404 not found</body></html>" + path.read_bytes())


def put_text(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1")


@pytest.mark.parametrize(
    ("name", "damage", "line"),
    [
        ("config.json", Path.unlink, "base model {base} has no config.json: is it a checkpoint?"),
        ("tokenizer.json", truncate, "base model {base}: tokenizer.json is damaged"),
        ("model.safetensors", Path.unlink, "base model {base} has no *.safetensors weights"),
        (
            "model.safetensors",
            truncate,
            "base model: {base}/model.safetensors is incomplete or damaged",
        ),
        (
            "model.safetensors",
            overwrite_the_start,
            "base model: {base}/model.safetensors is damaged",
        ),
        ("model.safetensors", put_text, "base model: {base}/model.safetensors is damaged"),
        (
            "model.safetensors",
            lambda path: path.write_bytes(b""),
            "base model: {base}/model.safetensors is damaged",
        ),
        (
            "model.safetensors",
            lambda path: path.write_bytes(b"\x02\0\0\0\0\0\0\0[]"),
            "base model: {base}/model.safetensors is damaged",
        ),
    ],
)
def test_a_damaged_base_model_is_refused(
    tmp_path: Path, name: str, damage: Callable[[Path], Any], line: str
) -> None:
    base = make_config(tmp_path).model.path
    damage(base / name)
    assert refusal(tmp_path) == line.format(base=base)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (repeat_a_maze, "the mazes with seeds [3, 999] are the same maze"),
        (wall_the_target_in, "maze with seed 1 cannot be solved"),
        (claim_another_size, "maze with seed 0 is 7x7, the set says 7x9"),
    ],
)
def test_a_run_on_wrong_mazes_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], line: str
) -> None:
    path = changed_set(tmp_path, change)
    assert refusal(tmp_path, mazes__test_set=str(path)).endswith(line)


def test_a_turn_limit_too_low_for_some_mazes_says_how_many_and_what_to_give(
    tmp_path: Path,
) -> None:
    line = refusal(tmp_path, mazes__max_turns=9)
    mazes = load_maze_set(make_config(tmp_path).mazes.test_set)
    turns = mazes.turns_needed()
    solvable = sum(needed <= 9 for needed in turns)
    assert 0 < solvable < 64
    assert line == (
        f"mazes.max_turns = 9 lets at most {solvable} of the 64 mazes of tiny-64 be solved: "
        f"give at least {max(turns)}"
    )


@pytest.mark.parametrize(
    "run_name", ["../other", "a/b", "..", "/etc", "Night", "night_1", "-night", "x" * 64, "a\n"]
)
def test_a_run_name_that_is_no_plain_short_name_is_refused(tmp_path: Path, run_name: str) -> None:
    assert refusal(tmp_path, run_name).startswith(
        f"run name {run_name!r}: use at most 63 lower-case"
    )
    assert reason(lambda: open_run(tmp_path / "runs", run_name)).startswith("run name ")


def test_a_run_name_of_another_configuration_is_refused_and_its_run_stays(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    taken = create_run(runs, make_config(tmp_path), IMAGE.digest, "night")
    before = (taken.folder / "run.json").read_bytes()
    line = refusal(tmp_path, "night", train__seed=2)
    assert line.startswith("run night belongs to another configuration: give another run name")
    assert (taken.folder / "run.json").read_bytes() == before
