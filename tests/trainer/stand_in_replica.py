"""A stand-in for a vLLM server: its models, its adapters that come and go, its refusals.

It plays the maze of PROBE: an adapter by the maze's solution, the base by stopping at once.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from configs.serving import BASE_NAME, Probe
from containers.trainer.wilson import layout_from_seed

MAZE = layout_from_seed(7, 7, 7)
STOP = "('stop', 'stop')"
SOLUTION = (*(f"('move', {way})" for way in MAZE.shortest_path() or []), STOP)
PROBE = Probe(layout=MAZE, replies=SOLUTION, base_replies=(STOP,))


class StandInReplica:
    """One server at a socket of its own; `serve` runs it."""

    def __init__(
        self, *, plays_as_base: bool = False, socket: Path | None = None, holds_back: bool = False
    ) -> None:
        self.socket = socket or Path(tempfile.gettempdir()) / f"replica-{uuid4().hex}.sock"
        self.holds_back = holds_back
        self.adapters: dict[str, str] = {}
        self.plays_as_base = plays_as_base
        self.requests: list[dict[str, Any]] = []

    def forget(self) -> None:
        """As after a restart without its adapters."""
        self.adapters.clear()

    @contextmanager
    def serve(self) -> Iterator["StandInReplica"]:
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/metrics", lambda _: PlainTextResponse("num_requests_running 0\n")),
        ]
        app = Starlette(routes=routes)
        config = uvicorn.Config(app, uds=str(self.socket), log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            thread.join(20)
            self.socket.unlink(missing_ok=True)

    async def _models(self, _: Request) -> Response:
        entries = [{"id": BASE_NAME, "root": "/base"}]
        entries += [{"id": name, "root": folder} for name, folder in self.adapters.items()]
        return JSONResponse({"object": "list", "data": entries})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        name, folder = body["lora_name"], body["lora_path"]
        if not (Path(folder) / "adapter_config.json").is_file():
            return PlainTextResponse(f"No adapter found for {folder}", 404)
        if name in self.adapters:
            return PlainTextResponse(f"'{name}' has already been loaded", 400)
        self.adapters[name] = folder
        return PlainTextResponse("Success")

    async def _unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return PlainTextResponse(f"'{name}' cannot be found", 404)
        return PlainTextResponse("Success")

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        model = body["model"]
        if model != BASE_NAME and model not in self.adapters:
            return JSONResponse({"error": {"message": f"no model {model}", "code": 404}}, 404)
        self.requests.append(body)
        if self.holds_back and len(body["messages"][0]["content"]) == 1:  # "?" shows no maze
            await asyncio.Event().wait()
        said = sum(message["role"] == "assistant" for message in body["messages"])
        script = (STOP,) if model == BASE_NAME or self.plays_as_base else SOLUTION
        text = script[min(said, len(script) - 1)]
        if body.get("stream"):
            return StreamingResponse(iter([f"data: {text}\n\n", "data: [DONE]\n\n"]))
        message = {"role": "assistant", "content": text}
        return JSONResponse({"model": model, "choices": [{"message": message}]})


if __name__ == "__main__":  # a replica that proves itself, then holds all other answers back
    replica = StandInReplica(socket=Path(sys.argv[1]), holds_back=True)
    with replica.serve():
        threading.Event().wait()
