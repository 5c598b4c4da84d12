"""The page beside the endpoint: one maze, played by the champion and by the base, side by side.

`GET /` is the page; `POST /play` plays, and tells each turn as it comes, one JSON line each.
"""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from starlette.responses import FileResponse, Response, StreamingResponse

from configs.mazes import MazeLayout
from configs.serving import BASE_NAME, Serving
from containers.trainer.player import ChatPlayer, PlayedTurn
from containers.trainer.wilson import layout_from_seed

PAGE = Path(__file__).with_name("page")
_FILES = ("index.html", "page.css", "page.js")
_NO_STORE = {"cache-control": "no-store"}
_POLICY = {
    "content-security-policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
}
_TIMEOUT_S = 60
_MAX_GAMES = 8
_PLAYING = ThreadPoolExecutor(2 * _MAX_GAMES, thread_name_prefix="play")
_games: set[object] = set()
"""Those going on; a game that nobody watches any more plays to its end."""


def page(name: str = "index.html") -> Response:
    """A file of the page; it asks for nothing from elsewhere."""
    if name not in _FILES:
        return Response(status_code=404)
    return FileResponse(PAGE / name, headers=_NO_STORE | _POLICY)


def choose_maze(asked: dict[str, Any], serving: Serving) -> MazeLayout:
    """The maze of `asked`: {"seed": n}, or {"grid": rows, "start": cell, "target": cell}.

    Raises:
        ValueError: one line: it is no maze, of another size, or cannot be solved.
    """
    size = serving.probes[0].layout
    if "grid" not in asked:
        seed = asked.get("seed", random.randrange(2**31))
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise ValueError("a seed is a whole number from 0 to 4294967295")
        return layout_from_seed(seed, size.height, size.width)
    try:
        layout = MazeLayout.model_validate({"seed": 0, **asked})
    except ValueError as error:
        raise ValueError(_first_reason(error)) from None
    if (layout.height, layout.width) != (size.height, size.width):
        raise ValueError(f"the adapter has learnt mazes of {size.height}x{size.width} cells")
    if layout.shortest_path() is None:
        raise ValueError("no way leads from the start to the target")
    return layout


def is_full() -> bool:
    """As many games are played as may be at a time."""
    return len(_games) >= _MAX_GAMES


def play(url: str, key: str | None, serving: Serving, layout: MazeLayout) -> Response:
    """Both players on the maze, at the same time."""
    lines = told(url, key, serving, layout)
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=_NO_STORE)


async def told(
    url: str, key: str | None, serving: Serving, layout: MazeLayout
) -> AsyncGenerator[str]:
    """The maze, then the turns of both as they come, then how each ended."""
    needed = len(layout.shortest_path() or []) + 1
    yield _line(maze=layout.model_dump(), turns_needed=needed, max_turns=serving.mazes.max_turns)
    heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def one(model: str) -> None:
        def say(**what: Any) -> None:
            loop.call_soon_threadsafe(heard.put_nowait, {"player": model, **what})

        def say_turn(turn: PlayedTurn) -> None:
            say(turn=asdict(turn))

        limit = serving.max_action_tokens
        player = ChatPlayer(url, model, serving.mazes, limit, key, timeout_s=_TIMEOUT_S)
        try:
            say(end=player.play(layout, say_turn).end)
        except httpx.HTTPError:
            say(end="the model server did not answer")

    models = (serving.alias, BASE_NAME)
    game = asyncio.gather(*(loop.run_in_executor(_PLAYING, one, model) for model in models))
    _games.add(game)
    game.add_done_callback(_games.discard)
    num_ended = 0
    while num_ended < len(models):
        event = await heard.get()
        num_ended += "end" in event
        yield _line(**event)
    await game


def _line(**what: Any) -> str:
    return json.dumps(what) + "\n"


def _first_reason(error: ValueError) -> str:
    """Of a validation error, the first thing that is wrong."""
    errors = getattr(error, "errors", None)
    first = errors()[0] if errors else {"msg": str(error), "loc": ()}
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}".removeprefix(": ").removeprefix("Value error, ")
