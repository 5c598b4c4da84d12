"""The fixed sets of mazes: what is shipped is what was recorded, and a wrong file is refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.loader import ROOT
from configs.mazes import MazeLayout, load_maze_set

MAZES = ROOT / "configs" / "mazes"
RECORDED = Path(__file__).parent / "trainer" / "data" / "visgym-maze2d" / "layouts.jsonl"

Content = dict[str, Any]


def changed_set(folder: Path, change: Callable[[Content], None], *, signed: bool = True) -> Path:
    """A copy of a shipped set, changed; `signed` gives it the digest of its changed layouts."""
    content = json.loads((MAZES / "tiny-64.json").read_text())
    change(content)
    if signed:
        canonical = json.dumps(content["mazes"], sort_keys=True)
        content["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    path = folder / "changed.json"
    path.write_text(json.dumps(content))
    return path


def reason_against(path: Path) -> str:
    """The one line with which `path` is refused, without the file's name."""
    with pytest.raises(ValueError) as caught:
        load_maze_set(path)
    message = str(caught.value)
    assert message.startswith(f"mazes file {path}")
    assert "\n" not in message
    return message.removeprefix(f"mazes file {path}")


def repeat_a_maze(content: Content) -> None:
    content["mazes"][5] = content["mazes"][3] | {"seed": 999}


def repeat_a_seed(content: Content) -> None:
    content["mazes"][5]["seed"] = 3


def wall_the_target_in(content: Content) -> None:
    """Maze 1 reaches its target at (1, 5) only from below."""
    content["mazes"][1]["grid"][2] = "1010111"


def claim_another_size(content: Content) -> None:
    content["width"] = 9


def make_a_maze_even(content: Content) -> None:
    content["mazes"][2]["grid"].insert(1, "1111111")


def make_a_row_short(content: Content) -> None:
    content["mazes"][2]["grid"][3] = "111111"


def open_the_rim(content: Content) -> None:
    content["mazes"][0]["grid"][0] = "1011111"


def put_the_start_in_a_wall(content: Content) -> None:
    content["mazes"][0]["start"] = [0, 0]


def put_the_target_outside(content: Content) -> None:
    content["mazes"][0]["target"] = [1, 7]


def write_a_letter_into_a_grid(content: Content) -> None:
    content["mazes"][0]["grid"][1] = "1x00101"


def add_a_key(content: Content) -> None:
    content["author"] = "nobody"


def drop_all_mazes(content: Content) -> None:
    content["mazes"] = []


def move_a_start(content: Content) -> None:
    content["mazes"][0]["start"] = [1, 1]


@pytest.mark.parametrize(
    ("name", "size", "digest"),
    [
        ("tiny-64", 7, "f615371a4cfe3380981dea11fc2db5189f60b26270e76a349d707aa6de6d941c"),
        ("visgym-easy-64", 9, "7346be3bdb844e5f058c65f39848a9cbb60cb572262d2f1988d6ad1e13a394f7"),
    ],
)
def test_the_shipped_sets_are_the_sets_that_results_were_measured_on(
    name: str, size: int, digest: str
) -> None:
    mazes = load_maze_set(MAZES / f"{name}.json")
    assert (mazes.name, mazes.height, mazes.width) == (name, size, size)
    assert len({maze.identity for maze in mazes.mazes}) == 64
    assert mazes.digest == digest


def test_every_shipped_set_loads() -> None:
    names = [load_maze_set(path).name for path in sorted(MAZES.glob("*.json"))]
    assert names == sorted(path.stem for path in MAZES.glob("*.json"))


def test_the_easy_set_is_the_recorded_easy_seeds_0_to_63() -> None:
    facts = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    keys = ("seed", "grid", "start", "target")
    expected = tuple(
        MazeLayout.model_validate({key: fact[key] for key in keys})
        for fact in facts
        if fact["level"] == "easy" and fact["seed"] < 64
    )
    assert [maze.seed for maze in expected] == list(range(64))
    assert load_maze_set(MAZES / "visgym-easy-64.json").mazes == expected


def test_fifteen_turns_solve_50_of_the_easy_set_and_seventeen_all_64() -> None:
    mazes = load_maze_set(MAZES / "visgym-easy-64.json")
    assert mazes.num_solvable(15) == 50
    assert mazes.num_solvable(17) == 64


def test_a_copy_that_is_only_laid_out_differently_is_the_same_set(tmp_path: Path) -> None:
    path = changed_set(tmp_path, lambda content: None)
    assert load_maze_set(path) == load_maze_set(MAZES / "tiny-64.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (repeat_a_maze, "the mazes with seeds [3, 999] are the same maze"),
        (repeat_a_seed, "seed 3 stands for two mazes"),
        (wall_the_target_in, "maze with seed 1 cannot be solved"),
        (claim_another_size, "maze with seed 0 is 7x7, the set says 7x9"),
        (make_a_maze_even, "maze with seed 2 is 8x7: sizes must be odd and at least 5"),
        (make_a_row_short, "maze with seed 2: every row of the grid needs the same length"),
        (open_the_rim, "maze with seed 0: the outer cells must all be walls"),
        (put_the_start_in_a_wall, "maze with seed 0: the start stands in a wall"),
        (put_the_target_outside, "maze with seed 0: the target lies outside the grid"),
        (write_a_letter_into_a_grid, "maze with seed 0: a grid holds only 0 (floor) and 1 (wall)"),
        (add_a_key, "author: Extra inputs are not permitted"),
        (drop_all_mazes, "mazes: Tuple should have at least 1 item"),
    ],
)
def test_a_wrong_set_is_refused_in_one_line_even_if_its_digest_fits(
    tmp_path: Path, change: Callable[[Content], None], message: str
) -> None:
    assert message in reason_against(changed_set(tmp_path, change))


def test_a_set_that_was_edited_by_hand_is_refused(tmp_path: Path) -> None:
    edited = changed_set(tmp_path, move_a_start, signed=False)
    assert "the digest does not match the layouts: the file was edited" in reason_against(edited)
    assert load_maze_set(changed_set(tmp_path, move_a_start)).mazes[0].start == (1, 1)


def test_a_file_that_is_no_json_is_refused_in_one_line(tmp_path: Path) -> None:
    torn = tmp_path / "torn.json"
    torn.write_text((MAZES / "tiny-64.json").read_text()[:1000])
    assert "Invalid JSON" in reason_against(torn)


def test_a_missing_file_gives_one_line(tmp_path: Path) -> None:
    assert reason_against(tmp_path / "none.json") == " does not exist"
