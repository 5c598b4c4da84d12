"""The episodes of an evaluation as its files hold them, and what went wrong in each.

Nothing here believes a file that contradicts the mazes: every walk is followed on its layout.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.jobs import EvaluationSummary
from configs.mazes import DIRECTIONS, Cell, MazeLayout, MazeSet

Outcome = Literal["moved", "wall", "stopped", "unparsable"]
End = Literal["solved", "stopped early", "out of turns"]
Diagnosis = Literal["solved", "loop", "wall", "unparsable", "stopped early", "out of turns"]
DIAGNOSES: tuple[Diagnosis, ...] = get_args(Diagnosis)


class Played(BaseModel):
    """A frozen part of episodes.jsonl; what a newer trainer adds is not ours to refuse."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PlayedTurn(Played):
    """One answer of the model and what came of it."""

    reply: str
    """The model's words: anything at all."""
    action: str
    outcome: Outcome
    agent: Cell
    """Where the player stands after it."""


class Episode(Played):
    """One maze played by one model."""

    seed: int
    solved: bool
    end: End
    turns: tuple[PlayedTurn, ...]

    def cells(self, layout: MazeLayout) -> list[Cell]:
        """Where the player stood: the start, then after each turn."""
        return [layout.start, *(turn.agent for turn in self.turns)]


def read_episodes(folder: Path, mazes: MazeSet) -> tuple[Episode, ...]:
    """The episodes of `folder`, one for each maze, in the set's order.

    Raises:
        ValueError: one line: a file is missing or damaged, or the episodes are not those of the
            mazes or of the summary beside them.
    """
    try:
        summary = EvaluationSummary.model_validate_json((folder / "summary.json").read_text())
        lines = (folder / "episodes.jsonl").read_text().splitlines()
    except FileNotFoundError as error:
        raise _unusable(folder, f"{Path(error.filename).name} is missing") from None
    except ValueError as error:  # no JSON, another shape, or not even text
        raise _unusable(folder, f"a file is damaged ({_first_line(error)})") from None
    if not len(lines) == len(summary.ends) == len(mazes.mazes):
        raise _unusable(
            folder,
            f"{len(lines)} episodes and {len(summary.ends)} outcomes "
            f"for the {len(mazes.mazes)} mazes of {mazes.name}",
        )
    episodes = tuple(_parse(folder, number, line) for number, line in enumerate(lines, 1))
    for number, (episode, maze) in enumerate(zip(episodes, mazes.mazes, strict=True), 1):
        if problem := _contradiction(episode, maze):
            raise _unusable(folder, f"episodes.jsonl line {number}: {problem}")
    if tuple(episode.end for episode in episodes) != summary.ends:
        raise _unusable(folder, "episodes.jsonl and summary.json tell of different outcomes")
    return episodes


def diagnose(layout: MazeLayout, episode: Episode) -> Diagnosis:
    """What an episode was lost to, or that it was not.

    One that ran out of turns is put down to what most of its wasted turns went into: walls,
    unparsable answers, a loop, or else its route, which is "out of turns". Wasted are the turns
    that brought it no nearer to the target.
    """
    if episode.end != "out of turns":
        return episode.end
    nearer = _distance(layout, layout.start) - _distance(layout, episode.cells(layout)[-1])
    lost = lost_turns(layout, episode)
    lost["out of turns"] = len(episode.turns) - nearer - lost.total()
    causes: tuple[Diagnosis, ...] = ("out of turns", "unparsable", "wall", "loop")
    return max(causes, key=lambda cause: lost[cause])


def lost_turns(layout: MazeLayout, episode: Episode) -> Counter[str]:
    """Turns that led nowhere: into a wall, unparsable, or the same step from the same cell again.

    Coming back out of a dead end is no loop: the way back is another step than the way in.
    """
    lost: Counter[str] = Counter()
    walked: set[tuple[Cell, Cell]] = set()
    before = layout.start
    for turn in episode.turns:
        step = (before, turn.agent)
        if turn.outcome in ("wall", "unparsable"):
            lost[turn.outcome] += 1
        elif turn.outcome == "moved" and step in walked:
            lost["loop"] += 1
        walked.add(step)
        before = turn.agent
    return lost


def reached_target(layout: MazeLayout, episode: Episode) -> int | None:
    """The first turn after which the player stood on the target; None where it never did."""
    cells = episode.cells(layout)
    return cells.index(layout.target) if layout.target in cells else None


def _distance(layout: MazeLayout, cell: Cell) -> int:
    """Moves from a cell to the target."""
    way = layout.model_copy(update={"start": cell}).shortest_path()
    assert way is not None, "a walk leaves no floor from which the target cannot be reached"
    return len(way)


def _parse(folder: Path, number: int, line: str) -> Episode:
    """One line; half a surrogate pair in the model's words becomes a question mark."""
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
        return Episode.model_validate_json(text)
    except (ValueError, RecursionError) as error:
        raise _unusable(
            folder, f"episodes.jsonl line {number} is no episode ({_first_line(error)})"
        ) from None


def _contradiction(episode: Episode, maze: MazeLayout) -> str:
    """In what the episode cannot have been played on this maze; empty if it can."""
    if episode.seed != maze.seed:
        return f"it is of the maze with seed {episode.seed}, not {maze.seed}"
    if not episode.turns:
        return "it has no turns"
    cells = episode.cells(maze)
    for number, turn in enumerate(episode.turns, 1):
        before, after = cells[number - 1 : number + 1]
        step = (after[0] - before[0], after[1] - before[1])
        is_move = step in DIRECTIONS and maze.is_floor(after)
        if not (is_move if turn.outcome == "moved" else after == before):
            return f"turn {number} ({turn.outcome}) leads from {before} to {after}"
    stopped = episode.turns[-1].outcome == "stopped"
    end = "out of turns"
    if stopped:
        end = "solved" if cells[-1] == maze.target else "stopped early"
    if episode.end != end or episode.solved != (end == "solved"):
        return f"it says {episode.end!r} of an episode that ended {end!r}"
    return ""


def _unusable(folder: Path, problem: str) -> ValueError:
    return ValueError(
        f"evaluation results in {folder}: {problem}: delete this folder and evaluate again"
    )


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error).splitlines()[0]
