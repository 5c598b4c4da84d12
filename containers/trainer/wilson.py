"""Mazes from a seed: Wilson's loop-erased random walks, with VisGym's order of random draws.

A seed is a promise: the same seed gives the same walls, start and target as `maze_2d` of
VisGym 0289034. So the draws below, their generators and their order are fixed: numpy's PCG64
picks a 32-bit seed for Python's Mersenne twister, which carves; numpy then picks the corners.
"""

import random

import numpy as np

from configs.mazes import Cell, MazeLayout

_WALK: tuple[Cell, ...] = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""Direction codes of the carving walk. Not those of the game's actions."""


def layout_from_seed(seed: int, height: int, width: int) -> MazeLayout:
    """Draw the maze that VisGym draws for `seed`; `height` and `width` in cells, both odd."""
    if height % 2 == 0 or width % 2 == 0 or min(height, width) < 5:
        raise ValueError(f"a maze of {height}x{width} cells: sizes must be odd and at least 5")
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
    carved = _carve(height - 2, width - 2, random.Random(int(draw.integers(2**32))))
    rows = ["1" * width]
    for row in range(height - 2):
        inner = "".join("0" if (row, column) in carved else "1" for column in range(width - 2))
        rows.append(f"1{inner}1")
    rows.append("1" * width)
    top_left, bottom_right = (1, 1), (height - 2, width - 2)
    bottom_left, top_right = (height - 2, 1), (1, width - 2)
    start, target = (
        (top_left, bottom_right),
        (bottom_right, top_left),
        (bottom_left, top_right),
        (top_right, bottom_left),
    )[int(draw.integers(0, 4))]
    return MazeLayout(seed=seed, grid=tuple(rows), start=start, target=target)


def _carve(height: int, width: int, draw: random.Random) -> set[Cell]:
    """The floor cells of a uniform spanning tree over the cells with even coordinates."""
    waiting = [(row, column) for row in range(0, height, 2) for column in range(0, width, 2)]
    floor = {waiting.pop(draw.randint(0, len(waiting) - 1))}
    while waiting:
        first = waiting[draw.randint(0, len(waiting) - 1)]
        heading = _walk_to_floor(first, floor, height, width, draw)
        cell = first
        while cell not in floor:
            waiting.remove(cell)
            floor.add(cell)
            down, right = _WALK[heading[cell]]
            floor.add((cell[0] + down, cell[1] + right))
            cell = (cell[0] + 2 * down, cell[1] + 2 * right)
    return floor


def _walk_to_floor(
    first: Cell, floor: set[Cell], height: int, width: int, draw: random.Random
) -> dict[Cell, int]:
    """Walk at random until the tree is met; the last heading taken in a cell erases its loops."""
    heading: dict[Cell, int] = {}
    cell = first
    while cell not in floor:
        while True:
            direction = draw.randint(0, 3)
            down, right = _WALK[direction]
            following = (cell[0] + 2 * down, cell[1] + 2 * right)
            if 0 <= following[0] < height and 0 <= following[1] < width:
                break
        heading[cell] = direction
        cell = following
    return heading
