"""The door: one address in front of the model servers, that knows whose answer it passes on.

python -m containers.server.door --serving FILE --port N

Users ask for the alias and get the champion of the newest generation that a replica was proven
to serve (see replica.py); the base and the adapters that are loaded answer under their own names.
Every answer carries the digest of what gave it. A switch is a change of the name that the next
request is passed on under, so no request is dropped. A replica that dies in the middle of a
request is left, and the request goes to another.
"""

import argparse
import asyncio
import hmac
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from configs.serving import BASE_NAME, DoorStatus, RayApp, Serving
from containers.server import playground
from containers.server.bodies import Bodies, Refused
from containers.server.replica import Replica, server_at

DIGEST_HEADER = "x-ariadne-digest"
_OPEN = ("/", "/health")
_OPEN_BELOW = ("/page/", "/metrics/")
"""Paths that ask for no key."""
_LOOK_EVERY_S = 1.0
_MAX_IN_FLIGHT = 256
_RETRY_S = 20
"""How long a request waits for a replica to come back before it is refused."""


class Door:
    """Replicas, the wish, and what is served."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.wanted = Serving.read(file)
        self.serving: Serving | None = None
        self._known: dict[Path | RayApp, Replica] = {}
        self.replicas = self._find_replicas()
        self.in_flight = 0
        self.bodies = Bodies()

    async def keep_looking(self) -> None:
        while True:
            self._read_wish()
            await asyncio.gather(*(each.look(self.wanted) for each in self.replicas))
            self._switch()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _read_wish(self) -> None:
        wish = Serving.read(self._file)
        if wish.generation == self.wanted.generation:
            return
        self.wanted = wish
        self.replicas = self._find_replicas()

    def _find_replicas(self) -> list[Replica]:
        known = self._known
        places = self.wanted.replicas
        self._known = {each: known.get(each) or Replica(server_at(each)) for each in places}
        return [*self._known.values()]

    def _switch(self) -> None:
        if any(replica.proven == self.wanted.generation for replica in self.replicas):
            self.serving = self.wanted

    def status(self) -> DoorStatus:
        return DoorStatus(
            file=self._file,
            wanted=self.wanted.generation,
            serving=self.serving.generation if self.serving else 0,
            champion_digest=self.serving.champion.digest if self.serving else "",
            replicas=tuple(replica.status() for replica in self.replicas),
        )

    def resolve(self, model: object) -> tuple[str, str]:
        """The name that replicas know a model by, and its digest.

        Raises:
            Refused: there is no such model; lists those there are.
        """
        if self.serving is None:
            raise Refused(503, "nothing is proven to be served yet", {"retry-after": "5"})
        names = self.models()
        if not isinstance(model, str) or model not in names:
            raise Refused(404, f"no such model; there are: {', '.join(names)}")
        return names[model]

    def models(self) -> dict[str, tuple[str, str]]:
        """Public name to the replicas' name and the digest."""
        serving = self.serving
        if serving is None:
            return {}
        own = {a.name(serving.alias): a.digest for a in serving.adapters}
        champion = serving.champion
        return {
            serving.alias: (champion.name(serving.alias), champion.digest),
            BASE_NAME: (BASE_NAME, serving.base_digest),
            **{name: (name, digest) for name, digest in own.items()},
        }

    def pick(self, tried: set[str]) -> Replica | None:
        """The least busy replica that is proven for what is served."""
        assert self.serving is not None
        fit = [
            replica
            for replica in self.replicas
            if replica.proven >= self.serving.generation and replica.name not in tried
        ]
        return min(fit, key=lambda replica: replica.in_flight, default=None)

    async def ask(
        self, path: str, body: dict[str, Any], name: str, digest: str
    ) -> tuple[Replica, httpx.Response]:
        """The beginning of a model's answer, from a replica that has begun to give one.

        Raises:
            Refused: no replica does.
        """
        tried: set[str] = set()
        deadline = asyncio.get_running_loop().time() + _RETRY_S
        while asyncio.get_running_loop().time() < deadline:
            replica = self.pick(tried)
            if replica is None:  # all were tried: wait for one that comes back
                tried.clear()
                await asyncio.sleep(0.2)
                continue
            replica.in_flight += 1
            answers = False
            try:
                response = await replica.ask(path, body, name, digest)
                if response.is_server_error:  # its own, or that of a server that has just died
                    await replica.check_same(self.wanted)
                answers = True
                return replica, response
            except httpx.TransportError as error:
                replica.lose(error)
                tried.add(replica.name)
            finally:
                replica.in_flight -= not answers
        raise Refused(503, "no model server answers", {"retry-after": "5"})


async def chat(request: Request) -> Response:
    """Pass a request on and its answer back."""
    door: Door = request.app.state.door
    if door.in_flight >= _MAX_IN_FLIGHT:
        raise Refused(429, "too many requests at a time", {"retry-after": "1"})
    door.in_flight += 1
    goes_on = False
    try:
        async with door.bodies.reading(request) as body:
            name, digest = door.resolve(body.get("model"))
            replica, response = await door.ask(request.url.path, body, name, digest)
            goes_on = bool(body.get("stream"))
    finally:
        door.in_flight -= not goes_on
    headers = {DIGEST_HEADER: digest}
    if goes_on:
        return PassedOn(door, replica, response, headers)
    replica.in_flight -= 1
    return Response(response.content, response.status_code, headers, media_type=_media(response))


class PassedOn(StreamingResponse):
    """An answer as it comes. It is in flight to its last byte, or until its client has gone."""

    def __init__(
        self, door: Door, replica: Replica, response: httpx.Response, headers: dict[str, str]
    ) -> None:
        parts = pass_on(replica, response)
        super().__init__(parts, response.status_code, headers, media_type=_media(response))
        self._door, self._replica, self._response = door, replica, response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._door.in_flight -= 1
            self._replica.in_flight -= 1
            await self._response.aclose()


async def pass_on(replica: Replica, response: httpx.Response) -> AsyncGenerator[bytes]:
    """The rest of an answer; a replica that dies meanwhile cuts it short, as the client sees."""
    try:
        async for part in response.aiter_raw():
            yield part
    except httpx.TransportError as error:
        replica.lose(error)
        raise


def _media(response: httpx.Response) -> str:
    return response.headers.get("content-type", "application/json")


async def list_models(request: Request) -> Response:
    door: Door = request.app.state.door
    entries = [
        {"id": name, "object": "model", "owned_by": "ariadne", "root": digest}
        for name, (_, digest) in door.models().items()
    ]
    return JSONResponse({"object": "list", "data": entries})


async def play_maze(request: Request) -> Response:
    """A maze for the page; the players ask this very door, as anybody would."""
    door: Door = request.app.state.door
    async with door.bodies.reading(request) as asked:
        if door.serving is None:
            raise Refused(503, "nothing is proven to be served yet", {"retry-after": "5"})
        try:
            layout = playground.choose_maze(asked, door.serving)
        except ValueError as error:
            raise Refused(400, str(error)) from None
    if playground.is_full():
        raise Refused(429, "too many games at a time", {"retry-after": "5"})
    url = f"http://127.0.0.1:{request.app.state.port}/v1"
    return playground.play(url, os.environ.get("VLLM_API_KEY"), door.serving, layout)


async def show_page(request: Request) -> Response:
    """The page itself needs no key; what it asks does."""
    return playground.page(request.path_params.get("name", "index.html"))


async def health(request: Request) -> Response:
    door: Door = request.app.state.door
    fit = door.serving is not None and door.pick(set()) is not None
    return Response(status_code=200 if fit else 503)


async def metrics(request: Request) -> Response:
    """Of one model server, by its name; Prometheus asks each."""
    door: Door = request.app.state.door
    named = [each for each in door.replicas if each.name == request.path_params["name"]]
    if not named:
        raise Refused(404, f"there are: {', '.join(each.name for each in door.replicas)}")
    try:
        answer = await named[0].metrics()
    except httpx.TransportError as error:
        raise Refused(503, f"it does not answer ({type(error).__name__})") from None
    return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])


async def status(request: Request) -> Response:
    door: Door = request.app.state.door
    return Response(door.status().model_dump_json(), media_type="application/json")


def refuse(_: Request, error: Exception) -> Response:
    """As the OpenAI API tells errors."""
    assert isinstance(error, Refused)
    said = {"message": str(error), "type": "invalid_request_error", "code": error.status}
    return JSONResponse({"error": said}, error.status, error.headers)


async def ask_for_key(request: Request, go_on: RequestResponseEndpoint) -> Response:
    """Let in who has the key, where there is one."""
    key = os.environ.get("VLLM_API_KEY")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    is_open = request.url.path in _OPEN or request.url.path.startswith(_OPEN_BELOW)
    if key and not is_open and not hmac.compare_digest(given.encode(), key.encode()):
        return refuse(request, Refused(401, "a valid API key is needed"))
    return await go_on(request)


def build(file: Path, port: int) -> Starlette:
    """The door for a serving file, to be served on `port`."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        app.state.door, app.state.port = Door(file), port
        looking = asyncio.create_task(app.state.door.keep_looking())
        yield
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", chat, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/play", play_maze, methods=["POST"]),
            Route("/", show_page),
            Route("/page/{name}", show_page),
            Route("/health", health),
            Route("/metrics/{name}", metrics),
            Route("/status", status),
        ],
        exception_handlers={Refused: refuse},
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=ask_for_key)],
        lifespan=lifespan,
    )


def main() -> None:
    """Read the command line and stand at the door."""
    parser = argparse.ArgumentParser(description="One address in front of the model servers")
    parser.add_argument("--serving", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--open", action="store_true", help="to other machines, for who has the key"
    )
    given = parser.parse_args()
    if given.open and not os.environ.get("VLLM_API_KEY"):
        parser.error("a door that is open to other machines needs VLLM_API_KEY")
    host = "0.0.0.0" if given.open else "127.0.0.1"
    uvicorn.run(build(given.serving, given.port), host=host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
