"""The adapter of the original game: one clear error without it, our protocol with it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from containers.trainer.maze import Game, MazeGame
from containers.trainer.visgym import VisGymGame
from containers.trainer.wilson import layout_from_seed
from tests.trainer import visgym_stand_in

ORIGINAL = "gymnasium.envs.maze_2d.maze_2d"
EPISODES = Path(__file__).parent / "data" / "visgym-maze2d" / "episodes.jsonl"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, ORIGINAL, visgym_stand_in)


def test_without_visgym_one_error_names_the_next_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, ORIGINAL, None)
    with pytest.raises(RuntimeError, match=r"VisGym is not installed: clone .*uv pip install"):
        VisGymGame(layout_from_seed(0, 9, 9))


@pytest.mark.usefixtures("stand_in")
def test_recorded_episodes_run_on_the_adapter_as_on_our_game() -> None:
    outcomes = set()
    for line in EPISODES.read_text().splitlines():
        episode = json.loads(line)
        size = {"easy": 9, "hard": 11}[episode["level"]]
        layout = layout_from_seed(episode["seed"], size, size)
        adapted, ours = VisGymGame(layout), MazeGame(layout)
        assert np.array_equal(adapted.frame(), ours.frame())
        for step in episode["steps"]:
            turn = adapted.step(step["action"])
            assert turn == ours.step(step["action"])
            assert (turn.reward, list(turn.agent)) == (step["reward"], step["agent"])
            outcomes.add(turn.outcome)
        assert np.array_equal(adapted.frame(), ours.frame())
    assert outcomes == {"moved", "wall", "stopped", "unparsable"}


@pytest.mark.usefixtures("stand_in")
def test_what_the_adapter_returns_is_plain_and_its_frame_a_copy() -> None:
    game: Game = VisGymGame(layout_from_seed(3, 5, 9))
    turn = game.step("('move', 0)")
    assert [type(part) for part in turn.agent] == [int, int]
    assert (type(turn.reward), type(turn.terminated)) == (float, bool)
    frame = game.frame()
    assert frame.shape == (5 * 25, 9 * 25, 3)
    assert frame.flags.c_contiguous
    frame[:] = 0
    assert game.frame().any()
