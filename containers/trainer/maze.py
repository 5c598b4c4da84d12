"""The game: maze_2d as VisGym plays it, on an explicit layout.

Actions are the text of a tuple, `('move', 0..3)` or `('stop', 'stop')`. Only a stop ends an
episode, and only a stop on the target is rewarded; a wall or a malformed action costs a turn.
Frames are drawn incrementally: the cell just left is repainted with a white disc, so a target
that was walked over keeps a white spot.
"""

import ast
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from configs.mazes import DIRECTIONS, Cell, MazeLayout

Frame = NDArray[np.uint8]
"""RGB picture of the maze, (height * cell_px, width * cell_px, 3)."""

WHITE, GREY, RED, BLUE = (255, 255, 255), (169, 169, 169), (255, 0, 0), (0, 0, 255)


@dataclass(frozen=True)
class Turn:
    """What one action led to. `outcome` says what the player did, as evaluation reports it."""

    reward: float
    terminated: bool
    truncated: bool
    agent: Cell
    outcome: str
    """One of moved, wall, stopped, unparsable."""


class Game(Protocol):
    """A maze being played. `MazeGame` is ours; `visgym.VisGymGame` is the original."""

    def step(self, action: str) -> Turn: ...

    def frame(self) -> Frame: ...


def parse_action(action: str) -> int | None:
    """The direction of a move, -1 for a stop, or None for text that is no action.

    VisGym reads Python literals, so spacing does not matter and True counts as 1; the payload
    of a stop may be any one to four ASCII letters or digits.
    """
    try:
        parsed = ast.literal_eval(action)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    if not isinstance(parsed, tuple) or len(parsed) != 2:
        return None
    name, payload = parsed
    if name == "move" and isinstance(payload, int) and 0 <= payload < len(DIRECTIONS):
        return int(payload)
    if name == "stop" and isinstance(payload, str) and 1 <= len(payload) <= 4:
        return -1 if payload.isascii() and payload.isalnum() else None
    return None


class MazeGame:
    """One episode on `layout`, drawn with cells of `cell_px` pixels."""

    def __init__(self, layout: MazeLayout, cell_px: int = 25) -> None:
        if cell_px < 4:
            raise ValueError(f"cell_px is {cell_px}: below 4 pixels the player cannot be drawn")
        self.layout = layout
        self.agent = layout.start
        self._cell_px = cell_px
        self._disc = _disc(cell_px)
        self._canvas = self._draw_maze()
        self._paint_disc(self.agent, BLUE)

    def step(self, action: str) -> Turn:
        """Play one action; an action after a stop is played as if the stop had not been."""
        move = parse_action(action)
        if move is None:
            return Turn(0.0, False, False, self.agent, "unparsable")
        if move < 0:
            reward = 1.0 if self.agent == self.layout.target else 0.0
            return Turn(reward, True, False, self.agent, "stopped")
        down, right = DIRECTIONS[move]
        following = (self.agent[0] + down, self.agent[1] + right)
        if not self.layout.is_floor(following):
            return Turn(0.0, False, False, self.agent, "wall")
        self._paint_disc(self.agent, WHITE)
        self._paint_disc(following, BLUE)
        self.agent = following
        return Turn(0.0, False, False, self.agent, "moved")

    def frame(self) -> Frame:
        """A copy of the picture as it stands, (height * cell_px, width * cell_px, 3) uint8."""
        return self._canvas.copy()

    def _draw_maze(self) -> Frame:
        cells = np.full((self.layout.height, self.layout.width, 3), WHITE, dtype=np.uint8)
        walls = np.array([[mark == "1" for mark in row] for row in self.layout.grid])
        cells[walls] = GREY
        cells[self.layout.target] = RED
        return cells.repeat(self._cell_px, axis=0).repeat(self._cell_px, axis=1)

    def _paint_disc(self, cell: Cell, colour: tuple[int, int, int]) -> None:
        top, left = cell[0] * self._cell_px, cell[1] * self._cell_px
        square = self._canvas[top : top + self._cell_px, left : left + self._cell_px]
        square[self._disc] = colour


def _disc(cell_px: int) -> NDArray[np.bool_]:
    """The player's disc in its cell, (cell_px, cell_px).

    The midpoint circle of radius cell_px // 4 around the pixel corner at cell_px // 2: an even
    number of pixels across, as SDL draws it, which keeps our frames equal to VisGym's.
    """
    radius, centre = cell_px // 4, cell_px // 2
    half_width = [0] * radius
    along, across, error = 0, radius, 1 - radius
    while along < across:
        if error >= 0:
            across -= 1
            error -= 2 * across
        along += 1
        error += 2 * along + 1
        half_width[along - 1] = max(half_width[along - 1], across)
        half_width[across - 1] = max(half_width[across - 1], along)
    disc = np.zeros((cell_px, cell_px), dtype=bool)
    for distance, half in enumerate(half_width):
        for row in (centre + distance, centre - distance - 1):
            disc[row, centre - half : centre + half] = True
    return disc
