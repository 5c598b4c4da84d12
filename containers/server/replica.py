"""A model server behind the door: what it has loaded, and whether it was proven to serve it.

A replica takes traffic of a generation once it lists the champion under the champion's own name
and has said on the probe mazes what the champion said when it was evaluated and the base did not.
A replica that was restarted has to prove itself again.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from configs.serving import Probe, RayApp, ReplicaStatus, Serving
from containers.server.model_server import ASK_TIMEOUT_S, ModelServer, NotProven
from containers.server.ray_serve_app import RayServeApp
from containers.server.vllm_at_socket import VllmAtSocket
from containers.trainer.player import ChatPlayer

_ANSWER_TIMEOUT_S = 300
_PROVING = ThreadPoolExecutor(thread_name_prefix="prove")
"""Players at the page must not keep a proof waiting for a thread."""


def server_at(address: Path | RayApp) -> ModelServer:
    """The kind of server that has such an address."""
    return RayServeApp(address) if isinstance(address, RayApp) else VllmAtSocket(address)


@dataclass
class Replica:
    """One model server."""

    server: ModelServer
    proven: int = 0
    refuted: int = 0
    in_flight: int = 0
    fault: str = "not asked yet"
    client: httpx.AsyncClient = field(init=False, repr=False)
    """For requests of users."""
    _own: httpx.AsyncClient = field(init=False, repr=False)
    """For our questions, which must not wait behind them."""

    def __post_init__(self) -> None:
        # The bound is on requests at the door: a full pool must not look like a dead server.
        self.client = _client(self.server, httpx.Limits(max_connections=None))
        self._own = _client(self.server, httpx.Limits())

    @property
    def name(self) -> str:
        return self.server.name

    async def metrics(self) -> httpx.Response:
        """What the server tells of itself, as Prometheus reads it."""
        return await self._own.get("/metrics", timeout=ASK_TIMEOUT_S)

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(
            name=self.name,
            proven=self.proven,
            refuted=self.refuted,
            in_flight=self.in_flight,
            fault=self.fault,
        )

    async def look(self, serving: Serving) -> None:
        """Bring the replica to the wanted generation, or note why it is not there.

        What it was proven to serve before stays in service meanwhile.
        """
        try:
            holding = await self.server.holding(self._own, serving)
            if holding.is_new:
                self.proven = 0
            if self.proven != serving.generation or holding.missing:
                for adapter in holding.missing:
                    await self.server.load(self._own, adapter, serving)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(_PROVING, prove, self.server, serving)
                self.proven = serving.generation
            self.refuted, self.fault = 0, ""
            for name in holding.others:
                if not self.in_flight:  # nobody waits for an answer of it
                    await self.server.unload(self._own, name)
        except httpx.TransportError as error:
            self.lose(error)
        except NotProven as error:
            self.refuted, self.fault = serving.generation, str(error)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.fault = f"it answers oddly ({type(error).__name__}: {error})"

    async def ask(self, path: str, body: dict[str, Any], name: str, digest: str) -> httpx.Response:
        """Answer a user as this model; of a stream only the beginning is there yet."""
        given = {**body, "model": self.server.model(name, digest)}
        request = self.client.build_request("POST", path, json=given)
        response = await self.client.send(request, stream=True)
        if not body.get("stream") or response.is_server_error:
            await response.aread()
        return response

    async def check_same(self, serving: Serving) -> None:
        """Whether it is still the server that was proven.

        Raises:
            httpx.TransportError: it is another one, or none.
        """
        try:
            is_new = (await self.server.holding(self._own, serving)).is_new
        except (httpx.HTTPStatusError, ValueError, KeyError):
            return  # nothing says that it is another one
        if is_new or not self.proven:  # the other one who looks may have seen it first
            raise httpx.RemoteProtocolError(f"{self.name} was started anew")

    def lose(self, error: Exception) -> None:
        """It may come back as another process: until it is proven again it takes no traffic."""
        self.proven = self.refuted = 0
        self.fault = f"it does not answer ({type(error).__name__})"


def _client(server: ModelServer, limits: httpx.Limits) -> httpx.AsyncClient:
    way = httpx.AsyncHTTPTransport(uds=server.socket and str(server.socket), limits=limits)
    return httpx.AsyncClient(base_url=server.url, transport=way, timeout=_ANSWER_TIMEOUT_S)


def prove(server: ModelServer, serving: Serving) -> None:
    """Play the probe mazes with the champion.

    Raises:
        NotProven: it says something else than when it was evaluated.
        httpx.HTTPError: the server does not answer.
    """
    champion = serving.champion
    player = ChatPlayer(
        f"{server.url}/v1",
        server.model(champion.name(serving.alias), champion.digest),
        serving.mazes,
        serving.max_action_tokens,
        timeout_s=60,
        socket=server.socket,
    )
    for probe in serving.probes:
        _check(player, probe, serving)


def _check(player: ChatPlayer, probe: Probe, serving: Serving) -> None:
    said = tuple(turn.reply for turn in player.play(probe.layout).turns)
    if said == probe.replies:
        return
    name = serving.champion.name(serving.alias)
    whose = "as the base does" if said == probe.base_replies else "neither as it nor as the base"
    raise NotProven(f"{name} plays maze {probe.layout.seed} {whose}: its adapter is not in effect")
