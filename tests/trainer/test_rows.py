"""Training rows: never a test maze, the same for the same seed, one maze for a whole group."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from skyrl.train.dataset import PromptDataset
from skyrl.train.generators.utils import prepare_generator_input
from transformers import AutoTokenizer

from configs.loader import ROOT, load_config
from configs.mazes import MazeLayout, MazeSet, load_maze_set
from containers.trainer import rows
from containers.trainer.rows import ENVIRONMENT, draw_training_mazes, write_rows
from containers.trainer.wilson import layout_from_seed

CONFIG = load_config("smoke")
TEST_SET = load_maze_set(CONFIG.mazes.test_set)


def written_rows(folder: Path, **overrides: Any) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    named = {f"train.{key}": value for key, value in overrides.items()}
    write_rows(load_config("smoke", named), TEST_SET, path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def layout_of(row: dict[str, Any]) -> MazeLayout:
    return MazeLayout.model_validate_json(row["layout"])


def is_test_maze(layout: MazeLayout, mazes: MazeSet) -> bool:
    return any(
        (layout.grid, layout.start, layout.target) == (maze.grid, maze.start, maze.target)
        for maze in mazes.mazes
    )


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "mazes").glob("*.json")), ids=str)
def test_no_training_maze_is_a_test_maze(path: Path) -> None:
    mazes = load_maze_set(path)
    drawn = draw_training_mazes(mazes, 400, seed=1)
    assert len(drawn) == 400
    assert {(maze.height, maze.width) for maze in drawn} == {(mazes.height, mazes.width)}
    assert not any(is_test_maze(layout, mazes) for layout in drawn)


def test_a_test_maze_that_is_drawn_again_under_another_seed_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5x5 mazes are so few that the draws are bound to meet the ones held out."""
    held_out = tuple({layout_from_seed(s, 5, 5).identity: s for s in range(10)}.values())
    layouts = tuple(layout_from_seed(seed, 5, 5) for seed in held_out)
    mazes = MazeSet(
        name="held-out", height=5, width=5, digest=MazeSet.digest_of(layouts), mazes=layouts
    )
    met: list[bool] = []

    def watched(seed: int, height: int, width: int) -> MazeLayout:
        layout = layout_from_seed(seed, height, width)
        met.append(is_test_maze(layout, mazes))
        return layout

    monkeypatch.setattr(rows, "layout_from_seed", watched)
    drawn = draw_training_mazes(mazes, 50, seed=1)
    assert any(met)
    assert not any(is_test_maze(layout, mazes) for layout in drawn)


def test_there_is_a_row_for_every_group_of_the_run_and_it_carries_its_layout(
    tmp_path: Path,
) -> None:
    content = written_rows(tmp_path, steps=5)
    assert len(content) == 5 * CONFIG.train.mazes_per_step
    for row in content:
        assert row["env_class"] == ENVIRONMENT
        layout = layout_of(row)
        assert layout == layout_from_seed(layout.seed, TEST_SET.height, TEST_SET.width)
        assert layout.shortest_path()


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path: Path) -> None:
    first = written_rows(tmp_path, seed=7)
    assert written_rows(tmp_path, seed=7) == first
    others = [layout_of(row) for row in written_rows(tmp_path, seed=8)]
    assert others != [layout_of(row) for row in first]


def test_more_steps_only_append_rows(tmp_path: Path) -> None:
    short, long = written_rows(tmp_path, steps=2), written_rows(tmp_path, steps=6)
    assert long[: len(short)] == short


def test_all_samples_of_a_group_play_the_maze_of_their_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows as SkyRL itself reads and repeats them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    content = written_rows(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(CONFIG.model.path)
    dataset = PromptDataset(str(tmp_path / "rows.jsonl"), tokenizer, 512, num_workers=0)
    prompts = dataset.collate_fn([dataset[number] for number in range(len(dataset))])
    samples = CONFIG.train.samples_per_maze
    batch, uids = prepare_generator_input(prompts, samples, {}, "other", "train", 1)
    played = [layout_of(extras) for extras in batch["env_extras"]]
    assert played == [layout_of(row) for row in content for _ in range(samples)]
    assert uids == [str(number) for number in range(len(content)) for _ in range(samples)]
    assert set(batch["env_classes"]) == {ENVIRONMENT}
    assert len({layout.identity for layout in played}) > 1
