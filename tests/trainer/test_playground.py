"""The page beside the endpoint: what it is told of a maze, and what it refuses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.server import door as doors
from tests.trainer.stand_in_replica import MAZE, SOLUTION, STOP, StandInReplica
from tests.trainer.test_door import ALIAS, Hosting, stands


@pytest.fixture
def hosting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosting]:
    monkeypatch.setattr(doors, "_LOOK_EVERY_S", 0.05)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with StandInReplica().serve() as replica, stands([replica], tmp_path) as hosting:
        yield hosting


def play(hosting: Hosting, asked: Any, **arguments: Any) -> httpx.Response:
    url = f"http://127.0.0.1:{hosting.port}/play"
    return httpx.post(url, json=asked, timeout=60, **arguments)


def told(hosting: Hosting, asked: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in play(hosting, asked).text.splitlines()]


def drawn(**changes: Any) -> dict[str, Any]:
    return {"grid": MAZE.grid, "start": MAZE.start, "target": MAZE.target, **changes}


@pytest.mark.parametrize("asked", [{"seed": 7}, drawn()], ids=["by its seed", "drawn"])
def test_both_players_turns_are_told_as_they_come(hosting: Hosting, asked: Any) -> None:
    first, *events = told(hosting, asked)
    assert first["maze"]["grid"] == list(MAZE.grid)
    assert first["turns_needed"] == len(SOLUTION)
    replies: dict[str, list[str]] = {ALIAS: [], "base": []}
    ends = {}
    for event in events:
        if "turn" in event:
            replies[event["player"]].append(event["turn"]["reply"])
        else:
            ends[event["player"]] = event["end"]
    assert replies == {ALIAS: list(SOLUTION), "base": [STOP]}
    assert ends == {ALIAS: "solved", "base": "stopped early"}


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"seed": -1}, "a seed is a whole number"),
        ({"seed": "1"}, "a seed is a whole number"),
        ({"seed": True}, "a seed is a whole number"),
        (drawn(grid=["11111"] * 5), "lies outside the grid"),
        (drawn(start=[9, 9]), "the start lies outside the grid"),
        (drawn(grid=["1" * 99] * 99), "the start stands in a wall"),
        (drawn(surprise=1), "surprise"),
        (
            drawn(grid=["111111111", *["100000001"] * 7, "111111111"]),
            "the adapter has learnt mazes of 7x7 cells",
        ),
    ],
)
def test_what_is_no_maze_for_it_is_refused_in_a_line(
    hosting: Hosting, asked: Any, word: str
) -> None:
    answer = play(hosting, asked)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert word in message and "\n" not in message


def test_a_target_behind_walls_is_refused(hosting: Hosting) -> None:
    (row, column), grid = MAZE.target, [list(line) for line in MAZE.grid]
    for y, x in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
        grid[y][x] = "1"
    answer = play(hosting, drawn(grid=["".join(line) for line in grid]))
    assert answer.json()["error"]["message"] == "no way leads from the start to the target"


def test_the_page_needs_no_key_and_playing_does(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    for path in ("/", "/page/page.js", "/page/page.css"):
        answer = hosting.get(path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert play(hosting, {"seed": 7}).status_code == 401
    right = {"authorization": "Bearer secret"}
    assert '"solved"' in play(hosting, {"seed": 7}, headers=right).text


@pytest.mark.parametrize("name", ["%2e%2e", "..%2fdoor.py", "door.py", "nothing"])
def test_the_page_has_no_other_files(hosting: Hosting, name: str) -> None:
    assert hosting.get(f"/page/{name}").status_code == 404
