"""Mazes held out: always the same, solvable, unknown to training and to the fixed set."""

from pathlib import Path
from typing import Any

import pytest

from configs.jobs import HeldOut
from configs.loader import load_config
from configs.mazes import MazeLayout, MazeSet, load_maze_set
from containers.trainer.held_out import FIRST_HELD_OUT_SEED, draw_held_out_mazes
from containers.trainer.rows import FIRST_TRAINING_SEED, draw_training_mazes


def draw(size: int, num_mazes: int, **overrides: Any) -> tuple[MazeLayout, ...]:
    config = load_config("local", {key.replace("__", "."): v for key, v in overrides.items()})
    wanted = HeldOut(height=size, width=size, num_mazes=num_mazes, output=Path("unused"))
    return draw_held_out_mazes(config, load_maze_set(config.mazes.test_set), wanted)


def identities(mazes: tuple[MazeLayout, ...] | list[MazeLayout]) -> set[str]:
    return {maze.identity for maze in mazes}


def test_the_sets_of_the_local_profile_are_whole_and_stay_what_they_are() -> None:
    fresh, larger = draw(7, 256), draw(9, 64)
    assert len(identities(fresh)) == 256 and len(identities(larger)) == 64
    assert {(maze.height, maze.width) for maze in larger} == {(9, 9)}
    digests = [MazeSet.digest_of(mazes)[:12] for mazes in (fresh, larger)]
    assert digests == ["1da6f43dab7f", "1ae77a85495a"]
    assert draw(7, 256) == fresh


def test_none_is_known_from_the_fixed_set_or_from_training() -> None:
    config = load_config("local")
    test_set = load_maze_set(config.mazes.test_set)
    trained = draw_training_mazes(
        test_set, config.train.steps * config.train.mazes_per_step, config.train.seed
    )
    assert len(trained) == 160
    fresh = identities(draw(7, 256))
    assert not fresh & identities(test_set.mazes)
    assert not fresh & identities(trained)


def test_their_seeds_are_none_that_training_or_a_fixed_set_draws() -> None:
    assert FIRST_TRAINING_SEED + 2**31 <= FIRST_HELD_OUT_SEED
    assert min(maze.seed for maze in draw(7, 256)) >= FIRST_HELD_OUT_SEED


def test_every_one_can_be_solved_in_the_turns_given() -> None:
    assert max(maze.turns_needed for maze in draw(9, 64)) <= 18
    assert max(maze.turns_needed for maze in draw(9, 64, mazes__max_turns=15)) <= 15


def test_other_training_mazes_leave_others() -> None:
    assert identities(draw(7, 256, train__seed=2)) != identities(draw(7, 256))


@pytest.mark.parametrize(("steps", "least", "most"), [(60, 100, 250), (2000, 0, 0)])
def test_where_training_has_met_nearly_all_mazes_there_are_fewer(
    steps: int, least: int, most: int
) -> None:
    """There are 768 mazes of 7x7 cells: 192 spanning trees of 3x3 rooms, 4 starts each."""
    assert least <= len(draw(7, 256, train__steps=steps)) <= most
