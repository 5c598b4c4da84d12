"""The original VisGym maze behind our protocol: a second opinion on `maze.MazeGame`.

VisGym takes the package name `gymnasium`, so it is not in our lock; install it by hand into an
environment of its own to compare the two games. Everything else of Ariadne plays `MazeGame`.
"""

from typing import Any

import numpy as np

from configs.mazes import MazeLayout
from containers.trainer.maze import Frame, Turn

_MISSING = (
    "VisGym is not installed: clone https://github.com/visgym/VisGym, then "
    "`uv pip install ./VisGym pygame` into an environment without any other gymnasium"
)


class VisGymGame:
    """One episode of VisGym's maze_2d on `layout`; it always draws cells of 25 pixels."""

    def __init__(self, layout: MazeLayout) -> None:
        try:
            from gymnasium.envs.maze_2d.maze_2d import Maze2DEnv
        except ImportError as error:
            raise RuntimeError(_MISSING) from error
        self._env = Maze2DEnv(maze_width=layout.width, maze_height=layout.height)
        start = {
            "maze_map": [[int(mark) for mark in row] for row in layout.grid],
            "agent_location": list(layout.start),
            "target_location": list(layout.target),
        }
        self._frame, info = self._env.reset(init_state=start)
        self._agent = _cell(info)

    def step(self, action: str) -> Turn:
        self._frame, reward, terminated, truncated, info = self._env.step(action)
        came_from, self._agent = self._agent, _cell(info)
        if terminated:
            outcome = "stopped"
        elif self._agent != came_from:
            outcome = "moved"
        else:  # of all feedback on what changed nothing, only that of a wall ends so
            outcome = "wall" if info["env_feedback"].endswith("wall.") else "unparsable"
        return Turn(float(reward), bool(terminated), bool(truncated), self._agent, outcome)

    def frame(self) -> Frame:
        return np.array(self._frame, dtype=np.uint8, order="C")


def _cell(info: dict[str, Any]) -> tuple[int, int]:
    row, column = info["agent"]
    return int(row), int(column)
