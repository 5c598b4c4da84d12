"""A model server behind the door: what it has loaded, and whether it was proven to serve it.

A replica takes traffic of a generation once it lists the champion under the champion's own name
and has said on the probe mazes what the champion said when it was evaluated and the base did not.
A replica that was restarted has to prove itself again.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from configs.serving import Probe, ReplicaStatus, ServedAdapter, Serving
from containers.trainer.player import ChatPlayer

URL = "http://replica"
"""Any host will do: the socket is what leads there."""
_ASK_TIMEOUT_S = 5
_LOAD_TIMEOUT_S = 120
_ANSWER_TIMEOUT_S = 300
_PROVING = ThreadPoolExecutor(thread_name_prefix="prove")
"""Players at the page must not keep a proof waiting for a thread."""


class NotProven(RuntimeError):
    """A replica does not serve what it should; says what it does instead."""


@dataclass
class Replica:
    """One model server."""

    socket: Path
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
        self.client = _client(self.socket, httpx.Limits(max_connections=None))
        self._own = _client(self.socket, httpx.Limits())

    @property
    def name(self) -> str:
        return self.socket.stem

    async def metrics(self) -> httpx.Response:
        """What the server tells of itself, as Prometheus reads it."""
        return await self._own.get("/metrics", timeout=_ASK_TIMEOUT_S)

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
            loaded = await self._loaded()
            if not _ours(loaded, serving):  # it was started anew
                self.proven = 0
            if self.proven != serving.generation or _missing(loaded, serving):
                await self._load_missing(loaded, serving)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(_PROVING, prove, self.socket, serving)
                self.proven = serving.generation
            self.refuted, self.fault = 0, ""
            await self._unload_others(loaded, serving)
        except httpx.TransportError as error:
            self.lose(error)
        except NotProven as error:
            self.refuted, self.fault = serving.generation, str(error)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.fault = f"it answers oddly ({type(error).__name__}: {error})"

    def lose(self, error: Exception) -> None:
        """It may come back as another process: until it is proven again it takes no traffic."""
        self.proven = self.refuted = 0
        self.fault = f"it does not answer ({type(error).__name__})"

    async def _loaded(self) -> list[str]:
        """The names of its models. The name of an adapter holds its digest, so that the folder
        it was loaded from does not matter."""
        answer = await self._own.get("/v1/models", timeout=_ASK_TIMEOUT_S)
        answer.raise_for_status()
        return [entry["id"] for entry in answer.json()["data"]]

    async def _load_missing(self, loaded: list[str], serving: Serving) -> None:
        for adapter in _missing(loaded, serving):
            await self._load(adapter.name(serving.alias), adapter)

    async def _load(self, name: str, adapter: ServedAdapter) -> None:
        answer = await self._own.post(
            "/v1/load_lora_adapter",
            json={"lora_name": name, "lora_path": str(adapter.folder)},
            timeout=_LOAD_TIMEOUT_S,
        )
        if not answer.is_success:
            raise NotProven(f"it does not load {adapter.folder}: {answer.text[:300]}")

    async def _unload_others(self, loaded: list[str], serving: Serving) -> None:
        """Drop adapters of earlier generations once nobody waits for an answer of theirs."""
        wanted = {adapter.name(serving.alias) for adapter in serving.adapters}
        for name in _ours(loaded, serving):
            if name not in wanted and not self.in_flight:
                await self._own.post(
                    "/v1/unload_lora_adapter",
                    json={"lora_name": name},
                    timeout=_LOAD_TIMEOUT_S,
                )


def _client(socket: Path, limits: httpx.Limits) -> httpx.AsyncClient:
    way = httpx.AsyncHTTPTransport(uds=str(socket), limits=limits)
    return httpx.AsyncClient(base_url=URL, transport=way, timeout=_ANSWER_TIMEOUT_S)


def _ours(loaded: list[str], serving: Serving) -> list[str]:
    return [name for name in loaded if name.startswith(f"{serving.alias}-")]


def _missing(loaded: list[str], serving: Serving) -> list[ServedAdapter]:
    return [each for each in serving.adapters if each.name(serving.alias) not in loaded]


def prove(socket: Path, serving: Serving) -> None:
    """Play the probe mazes with the champion.

    Raises:
        NotProven: it says something else than when it was evaluated.
        httpx.HTTPError: the server does not answer.
    """
    player = ChatPlayer(
        f"{URL}/v1",
        serving.champion.name(serving.alias),
        serving.mazes,
        serving.max_action_tokens,
        timeout_s=60,
        socket=socket,
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
