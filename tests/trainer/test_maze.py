"""The maze against facts recorded from the original VisGym, and at sizes that VisGym never drew."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.mazes import DIRECTIONS, MazeLayout
from containers.trainer.maze import BLUE, GREY, RED, WHITE, Frame, Game, MazeGame
from containers.trainer.wilson import layout_from_seed

RECORDED = Path(__file__).parent / "data" / "visgym-maze2d"
SIZES = {"easy": 9, "hard": 11}
CELL_SIZES = (4, 8, 40)

CORRIDOR = MazeLayout(
    seed=0,
    grid=("1111111", "1000001", "1111111", "1000001", "1111111"),
    start=(1, 1),
    target=(1, 3),
)


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / name).read_text().splitlines()]


def hash_of(frame: Frame) -> str:
    return hashlib.sha256(frame.tobytes()).hexdigest()


def cell_of(frame: Frame, cell: tuple[int, int], cell_px: int) -> Frame:
    top, left = cell[0] * cell_px, cell[1] * cell_px
    return frame[top : top + cell_px, left : left + cell_px]


def colours_of(picture: Frame) -> set[tuple[int, ...]]:
    return {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}


def name_of(entry: dict[str, Any]) -> str:
    return f"{entry['level']}-{entry['seed']}"


@pytest.mark.parametrize("fact", recorded("layouts.jsonl"), ids=name_of)
def test_a_seed_draws_the_maze_and_the_first_frame_of_the_original(fact: dict[str, Any]) -> None:
    size = SIZES[fact["level"]]
    layout = layout_from_seed(fact["seed"], size, size)
    assert list(layout.grid) == fact["grid"]
    assert (list(layout.start), list(layout.target)) == (fact["start"], fact["target"])
    assert len(layout.shortest_path() or []) == fact["shortest_moves"]
    frame = MazeGame(layout).frame()
    assert list(frame.shape) == fact["frame_shape"]
    assert hash_of(frame) == fact["frame_sha256"]


@pytest.mark.parametrize("episode", recorded("episodes.jsonl"), ids=name_of)
def test_an_episode_runs_as_it_ran_in_the_original(episode: dict[str, Any]) -> None:
    size = SIZES[episode["level"]]
    game = MazeGame(layout_from_seed(episode["seed"], size, size))
    for number, step in enumerate(episode["steps"]):
        turn = game.step(step["action"])
        found = {
            "action": step["action"],
            "reward": turn.reward,
            "terminated": turn.terminated,
            "truncated": turn.truncated,
            "agent": list(turn.agent),
            "frame_sha256": hash_of(game.frame()),
        }
        assert found == step, f"step {number}"


def test_the_recorded_facts_are_all_there() -> None:
    layouts, episodes = recorded("layouts.jsonl"), recorded("episodes.jsonl")
    easy = [fact["seed"] for fact in layouts if fact["level"] == "easy"]
    assert easy[:64] == list(range(64))
    assert (len(layouts), len(episodes)) == (124, 50)
    assert sum(len(episode["steps"]) for episode in episodes) == 770
    assert {step["reward"] for episode in episodes for step in episode["steps"]} == {0.0, 1.0}


@pytest.mark.parametrize("cell_px", CELL_SIZES)
@pytest.mark.parametrize(("height", "width"), [(5, 9), (9, 5), (7, 7), (13, 21)])
def test_a_perfect_player_solves_every_odd_size(height: int, width: int, cell_px: int) -> None:
    for seed in range(3):
        layout = layout_from_seed(seed, height, width)
        game = MazeGame(layout, cell_px)
        assert game.frame().shape == (height * cell_px, width * cell_px, 3)
        for direction in layout.shortest_path() or []:
            assert game.step(f"('move', {direction})").outcome == "moved"
        turn = game.step("('stop', 'stop')")
        assert (turn.reward, turn.terminated, turn.outcome) == (1.0, True, "stopped")


@pytest.mark.parametrize("cell_px", CELL_SIZES)
def test_walls_are_never_crossed_nor_painted_over(cell_px: int) -> None:
    layout = layout_from_seed(11, 5, 9)
    game = MazeGame(layout, cell_px)
    walls = (game.frame() == GREY).all(axis=2)
    draw = np.random.default_rng(3)
    outcomes = set()
    for _ in range(200):
        direction = int(draw.integers(4))
        before = game.agent
        outcome = game.step(f"('move', {direction})").outcome
        outcomes.add(outcome)
        change = (game.agent[0] - before[0], game.agent[1] - before[1])
        assert change == (DIRECTIONS[direction] if outcome == "moved" else (0, 0))
        assert layout.is_floor(game.agent)
        assert np.array_equal((game.frame() == GREY).all(axis=2), walls)
    assert outcomes == {"moved", "wall"}


@pytest.mark.parametrize("cell_px", [*CELL_SIZES, 25])
def test_the_disc_lies_inside_the_players_cell(cell_px: int) -> None:
    game = MazeGame(CORRIDOR, cell_px)
    blue = (game.frame() == BLUE).all(axis=2)
    rows, columns = np.nonzero(blue)
    assert {*(rows // cell_px)} == {*(columns // cell_px)} == {1}
    cell = cell_of(game.frame(), (1, 1), cell_px)
    rim = np.concatenate([cell[0], cell[-1], cell[:, 0], cell[:, -1]])
    assert (rim == WHITE).all()
    across = 2 * (cell_px // 4)
    assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (across, across)


@pytest.mark.parametrize("cell_px", CELL_SIZES)
def test_a_target_that_was_walked_over_keeps_a_white_spot(cell_px: int) -> None:
    game = MazeGame(CORRIDOR, cell_px)
    assert colours_of(cell_of(game.frame(), CORRIDOR.target, cell_px)) == {RED}
    for _ in range(2):
        game.step("('move', 0)")
    assert colours_of(cell_of(game.frame(), CORRIDOR.target, cell_px)) == {RED, BLUE}
    game.step("('move', 0)")
    assert colours_of(cell_of(game.frame(), CORRIDOR.target, cell_px)) == {RED, WHITE}
    assert game.step("('stop', 'stop')").reward == 0.0


def test_true_counts_as_one() -> None:
    layout = layout_from_seed(2, 9, 9)
    assert (layout.shortest_path() or [])[0] == 1
    by_number, by_truth = MazeGame(layout), MazeGame(layout)
    assert by_truth.step("('move', True)") == by_number.step("('move', 1)")
    assert by_truth.agent == (layout.start[0] - 1, layout.start[1])


def test_an_action_after_a_stop_is_played_on() -> None:
    game = MazeGame(CORRIDOR)
    assert game.step("('stop', 'stop')").terminated
    turn = game.step("('move', 0)")
    assert (turn.outcome, turn.agent, turn.terminated) == ("moved", (1, 2), False)


@pytest.mark.parametrize(("height", "width"), [(8, 9), (9, 8), (6, 6), (3, 9), (9, 1)])
def test_an_even_or_tiny_size_is_refused(height: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"{height}x{width}.*odd and at least 5"):
        layout_from_seed(0, height, width)


def test_cells_too_small_for_a_player_are_refused() -> None:
    with pytest.raises(ValueError, match="cell_px is 3"):
        MazeGame(CORRIDOR, cell_px=3)


def test_a_frame_is_a_copy_that_the_game_does_not_change() -> None:
    game: Game = MazeGame(CORRIDOR)
    before = game.frame()
    kept = before.copy()
    game.step("('move', 0)")
    assert np.array_equal(before, kept)
    assert not np.array_equal(game.frame(), kept)


def test_the_game_satisfies_the_protocol() -> None:
    game = MazeGame(CORRIDOR)
    for name in ("step", "frame"):
        promised = getattr(Game, name).__annotations__
        assert getattr(game, name).__annotations__ == promised
