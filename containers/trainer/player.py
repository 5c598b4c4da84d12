"""Playing mazes through the OpenAI chat API: the path that evaluation and users share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from configs.mazes import Cell, MazeLayout
from configs.schema import MazeConfig
from containers.trainer.conversation import Message, find_action, observation, opening
from containers.trainer.maze import Frame, MazeGame


@dataclass(frozen=True)
class PlayedTurn:
    """One answer and what came of it."""

    reply: str
    action: str
    outcome: str
    agent: Cell


@dataclass(frozen=True)
class PlayedEpisode:
    """One maze played to its end."""

    layout: MazeLayout
    solved: bool
    end: str
    """solved, stopped early, or out of turns."""
    turns: tuple[PlayedTurn, ...]
    frames: tuple[Frame, ...]
    """What the player saw, and the last picture, (height_px, width_px, 3) each."""


class ChatPlayer:
    """Plays with one model of an OpenAI-compatible server, greedily."""

    def __init__(
        self,
        url: str,
        model: str,
        mazes: MazeConfig,
        max_action_tokens: int,
        api_key: str | None = None,
        timeout_s: float = 300,
        socket: Path | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        way = httpx.HTTPTransport(uds=str(socket)) if socket else None
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=way)
        self._model = model
        self._mazes = mazes
        self._max_tokens = max_action_tokens

    def play(
        self, layout: MazeLayout, on_turn: Callable[[PlayedTurn], None] | None = None
    ) -> PlayedEpisode:
        """Play one maze.

        Raises:
            httpx.HTTPError: the server did not answer; a failed episode is never a lost maze.
        """
        game = MazeGame(layout, self._mazes.cell_px)
        padding = self._mazes.frame_multiple_px
        frames = [game.frame()]
        talk: list[Message] = [opening(layout, frames[0], padding)]
        turns: list[PlayedTurn] = []
        while len(turns) < self._mazes.max_turns:
            reply = self._ask(talk)
            action = find_action(reply)
            turn = game.step(action)
            turns.append(PlayedTurn(reply, action, turn.outcome, turn.agent))
            frames.append(game.frame())
            if on_turn:
                on_turn(turns[-1])
            if turn.terminated:
                end = "solved" if turn.reward > 0 else "stopped early"
                return PlayedEpisode(layout, turn.reward > 0, end, tuple(turns), tuple(frames))
            talk.append({"role": "assistant", "content": reply})
            talk.append(observation(turn.outcome, frames[-1], padding))
        return PlayedEpisode(layout, False, "out of turns", tuple(turns), tuple(frames))

    def _ask(self, talk: list[Message]) -> str:
        request = {
            "model": self._model,
            "messages": talk,
            "max_tokens": self._max_tokens,
            "temperature": 0.0,
            "seed": 0,
        }
        for attempt in range(3):
            try:
                answer = self._client.post("/chat/completions", json=request)
                answer.raise_for_status()
                return answer.json()["choices"][0]["message"]["content"] or ""
            except httpx.TransportError:
                if attempt == 2:
                    raise
                time.sleep(0.5)
        raise AssertionError("unreachable")
