"""Maze layouts as data: one explicit maze, and the fixed sets of them that evaluation plays.

A layout is what the game needs and nothing else, so two mazes are the same exactly when
their layouts are equal, whatever seed drew them. A set carries the digest of its layouts;
a file that was edited by hand no longer matches its digest and is refused.
"""

import hashlib
import json
from collections import Counter, deque
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Cell = tuple[int, int]
"""(row, column), counted from the top left corner."""

DIRECTIONS: tuple[Cell, ...] = ((0, 1), (-1, 0), (0, -1), (1, 0))
"""Row and column change of ('move', 0..3): right, up, left, down."""


class MazeLayout(BaseModel):
    """One maze: `grid` has one string a row, "1" for a wall and "0" for floor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0)
    grid: tuple[str, ...]
    start: Cell
    target: Cell

    @property
    def height(self) -> int:
        return len(self.grid)

    @property
    def width(self) -> int:
        return len(self.grid[0])

    @property
    def identity(self) -> str:
        """The layout without its seed, as one string: equal for equal mazes."""
        return json.dumps([self.grid, self.start, self.target])

    @property
    def turns_needed(self) -> int:
        """Turns of a perfect player, the final stop included."""
        return len(self.shortest_path() or []) + 1

    def is_floor(self, cell: Cell) -> bool:
        return self.grid[cell[0]][cell[1]] == "0"

    def shortest_path(self) -> list[int] | None:
        """The directions of a shortest walk from start to target; None where there is none."""
        came_from: dict[Cell, tuple[Cell, int] | None] = {self.start: None}
        queue = deque([self.start])
        while queue:
            cell = queue.popleft()
            for direction, (down, right) in enumerate(DIRECTIONS):
                following = (cell[0] + down, cell[1] + right)
                if self.is_floor(following) and following not in came_from:
                    came_from[following] = (cell, direction)
                    queue.append(following)
        if self.target not in came_from:
            return None
        walk: list[int] = []
        step = came_from[self.target]
        while step is not None:
            cell, direction = step
            walk.append(direction)
            step = came_from[cell]
        return walk[::-1]

    @model_validator(mode="after")
    def _check(self) -> Self:
        where = f"maze with seed {self.seed}"
        if not self.grid or any(len(row) != self.width for row in self.grid):
            raise ValueError(f"{where}: every row of the grid needs the same length")
        if self.height % 2 == 0 or self.width % 2 == 0 or min(self.height, self.width) < 5:
            raise ValueError(
                f"{where} is {self.height}x{self.width}: sizes must be odd and at least 5"
            )
        if set("".join(self.grid)) - {"0", "1"}:
            raise ValueError(f"{where}: a grid holds only 0 (floor) and 1 (wall)")
        rim = self.grid[0] + self.grid[-1] + "".join(row[0] + row[-1] for row in self.grid)
        if "0" in rim:
            raise ValueError(f"{where}: the outer cells must all be walls")
        for name, (row, column) in (("start", self.start), ("target", self.target)):
            if not (0 <= row < self.height and 0 <= column < self.width):
                raise ValueError(f"{where}: the {name} lies outside the grid")
            if not self.is_floor((row, column)):
                raise ValueError(f"{where}: the {name} stands in a wall")
        return self


class MazeSet(BaseModel):
    """A fixed, ordered set of different, solvable mazes of one size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    height: int
    width: int
    digest: str
    mazes: tuple[MazeLayout, ...] = Field(min_length=1)

    @staticmethod
    def digest_of(mazes: tuple[MazeLayout, ...]) -> str:
        canonical = json.dumps([maze.model_dump() for maze in mazes], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def num_solvable(self, max_turns: int) -> int:
        """How many of the mazes can be solved in `max_turns` turns, the final stop included."""
        return sum(turns <= max_turns for turns in self.turns_needed())

    def turns_needed(self) -> list[int]:
        """Turns of a perfect player for each maze, in order, the final stop included."""
        return [maze.turns_needed for maze in self.mazes]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for maze in self.mazes:
            if (maze.height, maze.width) != (self.height, self.width):
                raise ValueError(
                    f"maze with seed {maze.seed} is {maze.height}x{maze.width}, "
                    f"the set says {self.height}x{self.width}"
                )
            if maze.shortest_path() is None:
                raise ValueError(f"maze with seed {maze.seed} cannot be solved")
        twins = [seeds for seeds in self._seeds_by_layout().values() if len(seeds) > 1]
        if twins:
            raise ValueError(f"the mazes with seeds {twins[0]} are the same maze")
        repeated = [s for s, n in Counter(maze.seed for maze in self.mazes).items() if n > 1]
        if repeated:
            raise ValueError(f"seed {repeated[0]} stands for two mazes")
        if self.digest != self.digest_of(self.mazes):
            raise ValueError("the digest does not match the layouts: the file was edited")
        return self

    def _seeds_by_layout(self) -> dict[str, list[int]]:
        seeds: dict[str, list[int]] = {}
        for maze in self.mazes:
            seeds.setdefault(maze.identity, []).append(maze.seed)
        return seeds


def load_maze_set(path: Path) -> MazeSet:
    """Read and check a maze set.

    Raises:
        ValueError: one line that names the file and the first thing wrong with it.
    """
    try:
        return MazeSet.model_validate_json(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"mazes file {path} does not exist") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(
            f"mazes file {path}: {place + ': ' if place else ''}{first['msg']}"
        ) from None
