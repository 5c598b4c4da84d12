"""Hand-made episodes: mazes, and walks on them written as letters."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.jobs import EvaluationSummary
from configs.mazes import DIRECTIONS, MazeLayout, MazeSet

HALL = ("1111111", "1000001", "1111101", "1000001", "1111111")
"""A U of eleven cells, open to the left."""
_MOVES = "RULD"


def maze_set(*ways: tuple[tuple[int, int], tuple[int, int]]) -> MazeSet:
    """The hall once for each start and target."""
    mazes = tuple(
        MazeLayout(seed=seed, grid=HALL, start=start, target=target)
        for seed, (start, target) in enumerate(ways)
    )
    digest = MazeSet.digest_of(mazes)
    return MazeSet(name="hall", height=5, width=7, digest=digest, mazes=mazes)


def episode(maze: MazeLayout, walk: str, words: Sequence[str] = ()) -> dict[str, Any]:
    """A line of episodes.jsonl, as the trainer writes it: R, U, L, D, S(top) or anything else.

    `words` are replies in place of the plain actions of the first turns.
    """
    cell, turns, end = maze.start, [], "out of turns"
    for index, letter in enumerate(walk):
        action, outcome = f"no {letter}", "unparsable"
        if letter == "S":
            action, outcome = "('stop', 'stop')", "stopped"
            end = "solved" if cell == maze.target else "stopped early"
        elif letter in _MOVES:
            action, outcome = f"('move', {_MOVES.index(letter)})", "wall"
            down, right = DIRECTIONS[_MOVES.index(letter)]
            if maze.is_floor((cell[0] + down, cell[1] + right)):
                cell, outcome = (cell[0] + down, cell[1] + right), "moved"
        reply = words[index] if index < len(words) else action
        turns.append({"reply": reply, "action": action, "outcome": outcome, "agent": [*cell]})
    return {"seed": maze.seed, "solved": end == "solved", "end": end, "turns": turns}


def perfect(maze: MazeLayout) -> str:
    """The walk of a perfect player."""
    return "".join(_MOVES[move] for move in maze.shortest_path() or []) + "S"


def write_results(folder: Path, mazes: MazeSet, episodes: Sequence[dict[str, Any]]) -> Path:
    """episodes.jsonl and summary.json."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(each) + "\n" for each in episodes)
    (folder / "episodes.jsonl").write_text(lines)
    summary = EvaluationSummary(
        mazes_digest=mazes.digest,
        num_mazes=len(episodes),
        num_solved=sum(each["solved"] for each in episodes),
        solved=tuple(each["solved"] for each in episodes),
        turns=tuple(len(each["turns"]) for each in episodes),
        turns_needed=tuple(mazes.turns_needed()[: len(episodes)]),
        ends=tuple(each["end"] for each in episodes),
        seconds=1.0,
    )
    (folder / "summary.json").write_text(summary.model_dump_json())
    return folder
