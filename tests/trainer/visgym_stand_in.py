"""VisGym's maze_2d module as far as our adapter may use it, as strict as the original (0289034).

Takes the original's argument names and returns its types: arrays where it returns arrays, frames
that do not lie in C order, and feedback with the original's endings around the player's own text.
"""

from typing import Any

import numpy as np

from configs.mazes import MazeLayout
from containers.trainer.maze import MazeGame

FEEDBACK = {
    "moved": "{action!r} went well.",
    "stopped": "{action!r} went well.",
    "wall": "No way through a wall.",
    "unparsable": "{action!r} means wall. or nothing, so nothing is executed.",
}


class Maze2DEnv:
    def __init__(
        self, maze_width: int = 11, maze_height: int = 11, seed: int | None = None
    ) -> None:
        if maze_width % 2 == 0 or maze_height % 2 == 0:
            raise ValueError("an even size")
        self._shape = (maze_height, maze_width)

    def reset(
        self,
        seed: int | None = None,
        options: Any = None,
        init_state: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        assert init_state is not None, "this maze would be drawn at random"
        self._map = np.array(init_state["maze_map"])
        self._target = np.array(init_state["target_location"])
        if self._map.shape != self._shape:
            raise ValueError("the map has another shape than the maze")
        assert self._map.dtype == int, "a wall is the number 1, not a text"
        layout = MazeLayout(
            seed=0,
            grid=tuple("".join(map(str, row)) for row in self._map.tolist()),
            start=tuple(np.array(init_state["agent_location"]).tolist()),
            target=tuple(self._target.tolist()),
        )
        self._game = MazeGame(layout)
        return self._picture(), self._info("")

    def step(self, action: str) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        turn = self._game.step(action)
        feedback = FEEDBACK[turn.outcome].format(action=action)
        info = self._info(feedback)
        return self._picture(), turn.reward, turn.terminated, turn.truncated, info

    def _picture(self) -> np.ndarray:
        by_column = self._game.frame().transpose(1, 0, 2).copy()
        return by_column.transpose(1, 0, 2)

    def _info(self, feedback: str) -> dict[str, Any]:
        agent = np.array(self._game.agent)
        return {
            "distance": np.linalg.norm(agent - self._target, ord=1),
            "agent": agent,
            "target": self._target,
            "maze_map": self._map,
            "env_feedback": feedback,
        }
