"""The maze as SkyRL plays it: what is rewarded, what counts as success, when an episode ends."""

from collections.abc import Iterable
from typing import Any

import pytest
import skyrl_gym
from skyrl_gym.envs.registration import deregister

from configs.loader import load_config
from configs.mazes import MazeLayout
from containers.trainer.conversation import FEEDBACK
from containers.trainer.maze_env import MazeEnv, MazeRules, register
from containers.trainer.rows import ENVIRONMENT

CORRIDOR = MazeLayout(
    seed=0,
    grid=("1111111", "1000001", "1111111", "1000001", "1111111"),
    start=(1, 1),
    target=(1, 3),
)
RIGHT, UP, STOP, NONSENSE = "('move', 0)", "('move', 1)", "('stop', 'stop')", "hello"


def make_env(max_turns: int = 8, format_bonus: float = 0.0) -> MazeEnv:
    rules = MazeRules(
        cell_px=8, frame_multiple_px=32, max_turns=max_turns, format_bonus=format_bonus
    )
    env = MazeEnv(rules, {}, {"layout": CORRIDOR.model_dump_json()})
    env.init([{"role": "user", "content": "maze"}])
    return env


def play(env: MazeEnv, actions: Iterable[str]) -> list[Any]:
    """The steps up to the end of the episode."""
    steps = []
    for action in actions:
        steps.append(env.step(action))
        if steps[-1]["done"]:
            break
    return steps


def test_a_stop_on_the_target_is_success_and_the_whole_reward() -> None:
    env = make_env()
    steps = play(env, [RIGHT, RIGHT, STOP])
    assert [step["reward"] for step in steps] == [0.0, 0.0, 1.0]
    assert [step["done"] for step in steps] == [False, False, True]
    assert env.get_metrics() == {
        "success": 1.0,
        "turns": 3.0,
        "wall_hits": 0.0,
        "unparsable": 0.0,
    }


def test_a_stop_elsewhere_ends_the_episode_without_success() -> None:
    env = make_env()
    steps = play(env, [RIGHT, STOP])
    assert (steps[-1]["done"], steps[-1]["reward"]) == (True, 0.0)
    assert env.get_metrics()["success"] == 0.0


def test_walking_over_the_target_is_no_success() -> None:
    env = make_env(max_turns=2)
    steps = play(env, [RIGHT, RIGHT])
    assert (steps[-1]["done"], steps[-1]["reward"]) == (True, 0.0)
    assert env.get_metrics()["success"] == 0.0


def test_the_turn_limit_ends_an_episode_with_reward_zero_and_nothing_more_to_see() -> None:
    env = make_env(max_turns=4)
    steps = play(env, [UP] * 10)
    assert len(steps) == 4
    assert [step["reward"] for step in steps] == [0.0] * 4
    assert (steps[-1]["done"], steps[-1]["observations"]) == (True, [])
    assert env.get_metrics()["wall_hits"] == 4.0


def test_a_stop_in_the_very_last_turn_still_counts() -> None:
    env = make_env(max_turns=3)
    assert play(env, [RIGHT, RIGHT, STOP])[-1]["reward"] == 1.0


@pytest.mark.parametrize(
    ("actions", "reward", "success"),
    [
        ([RIGHT, RIGHT, STOP], 1.0, 1.0),
        ([RIGHT, NONSENSE, RIGHT, STOP], 0.8 + 0.2 * 3 / 4, 1.0),
        ([UP, STOP], 0.2, 0.0),
        ([NONSENSE, STOP], 0.1, 0.0),
        ([NONSENSE] * 8, 0.0, 0.0),
        ([UP] * 8, 0.2, 0.0),
    ],
)
def test_the_format_bonus_pays_for_actions_and_never_for_success(
    actions: list[str], reward: float, success: float
) -> None:
    env = make_env(format_bonus=0.2)
    steps = play(env, actions)
    assert steps[-1]["done"]
    assert [step["reward"] for step in steps[:-1]] == [0.0] * (len(steps) - 1)
    assert steps[-1]["reward"] == pytest.approx(reward)
    assert env.get_metrics()["success"] == success


def test_without_a_bonus_format_is_not_paid_for() -> None:
    assert play(make_env(), [NONSENSE, RIGHT, RIGHT, STOP])[-1]["reward"] == 1.0
    assert play(make_env(), [UP] * 8)[-1]["reward"] == 0.0


def test_each_turn_shows_one_picture_and_what_became_of_the_action() -> None:
    steps = play(make_env(), [RIGHT, UP, NONSENSE])
    for step, outcome in zip(steps, ["moved", "wall", "unparsable"], strict=True):
        (message,) = step["observations"]
        kinds = [part["type"] for part in message["content"]]
        assert kinds == ["image_url", "text"]
        assert message["content"][1]["text"] == FEEDBACK[outcome]


def test_the_last_tuple_of_an_answer_is_played() -> None:
    env = make_env()
    play(env, ["Not ('move', 1), but ('move', 0)", RIGHT, "So: ('stop', 'stop')"])
    assert env.get_metrics()["success"] == 1.0


def test_the_registered_environment_plays_by_the_rules_of_the_profile() -> None:
    config = load_config("smoke", {"mazes.max_turns": 2, "train.format_bonus": 0.5})
    register(config)
    try:
        extras = {"layout": CORRIDOR.model_dump_json()}
        env = skyrl_gym.make(ENVIRONMENT, env_config={}, extras=extras)
        (first,), _ = env.init([{"role": "user", "content": "maze"}])
        assert first["content"][0]["type"] == "image_url"
        assert not env.step(UP)["done"]
        last = env.step(UP)
        assert (last["done"], last["reward"]) == (True, 0.5)
    finally:
        deregister(ENVIRONMENT)
