"""The maze as a SkyRL environment: many turns, a picture in each, success counted apart."""

from dataclasses import dataclass
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from configs.mazes import MazeLayout
from configs.schema import PostTrainConfig
from containers.trainer.conversation import Message, find_action, observation, opening
from containers.trainer.maze import MazeGame
from containers.trainer.rows import ENVIRONMENT


@dataclass(frozen=True)
class MazeRules:
    """What all episodes of a run share."""

    cell_px: int
    frame_multiple_px: int
    max_turns: int
    format_bonus: float


class MazeEnv(BaseTextEnv):
    """One episode. The reward comes with the last turn only.

    It is (1 - format_bonus) for solving the maze plus format_bonus times the share of answers
    that were actions. `success` in the metrics is the maze's own outcome, whatever the reward.
    """

    def __init__(self, rules: MazeRules, env_config: Any, extras: dict[str, Any]) -> None:
        super().__init__()
        self._rules = rules
        self._layout = MazeLayout.model_validate_json(extras["layout"])
        self._game = MazeGame(self._layout, rules.cell_px)
        self._outcomes: list[str] = []
        self._success = False

    def init(self, prompt: list[Message]) -> tuple[list[Message], dict[str, Any]]:
        first = opening(self._layout, self._game.frame(), self._rules.frame_multiple_px)
        return [first], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        turn = self._game.step(find_action(action))
        self._outcomes.append(turn.outcome)
        self._success = turn.reward > 0
        done = turn.terminated or len(self._outcomes) >= self._rules.max_turns
        seen: list[Message] = []
        if not done:
            padding = self._rules.frame_multiple_px
            seen = [observation(turn.outcome, self._game.frame(), padding)]
        reward = self._final_reward() if done else 0.0
        return BaseTextEnvStepOutput(observations=seen, reward=reward, done=done, metadata={})

    def get_metrics(self) -> dict[str, float]:
        """Averaged over the batch by SkyRL as environment/avg_<name>."""
        return {
            "success": float(self._success),
            "turns": float(len(self._outcomes)),
            "wall_hits": float(self._outcomes.count("wall")),
            "unparsable": float(self._outcomes.count("unparsable")),
        }

    def _final_reward(self) -> float:
        bonus = self._rules.format_bonus
        well_formed = 1 - self._outcomes.count("unparsable") / len(self._outcomes)
        return (1 - bonus) * float(self._success) + bonus * well_formed


def register(config: PostTrainConfig) -> None:
    """Make the environment known to SkyRL in this process."""
    rules = MazeRules(
        cell_px=config.mazes.cell_px,
        frame_multiple_px=config.mazes.frame_multiple_px,
        max_turns=config.mazes.max_turns,
        format_bonus=config.train.format_bonus,
    )
    skyrl_gym.register(id=ENVIRONMENT, entry_point=MazeEnv, kwargs={"rules": rules})
