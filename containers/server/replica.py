"""A model server behind the door: what it has loaded, and whether it was proven to serve it.

A replica takes traffic of a generation once it lists the champion under the champion's own name
and has said on the probe mazes what the champion said when it
was evaluated and the base did not. A replica that was restarted has to prove itself again.
"""

import asyncio
import os
from dataclasses import dataclass

import httpx

from configs.serving import Probe, ReplicaStatus, ServedAdapter, Serving
from containers.trainer.player import ChatPlayer

_ASK_TIMEOUT_S = 5
_LOAD_TIMEOUT_S = 120


class NotProven(RuntimeError):
    """A replica does not serve what it should; says what it does instead."""


@dataclass
class Replica:
    """One model server."""

    url: str
    proven: int = 0
    refuted: int = 0
    in_flight: int = 0
    fault: str = "not asked yet"

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(
            url=self.url,
            proven=self.proven,
            refuted=self.refuted,
            in_flight=self.in_flight,
            fault=self.fault,
        )

    async def look(self, client: httpx.AsyncClient, serving: Serving) -> None:
        """Bring the replica to the wanted generation, or note why it is not there.

        What it was proven to serve before stays in service meanwhile.
        """
        try:
            loaded = await self._loaded(client)
            if not _ours(loaded, serving):  # it was started anew
                self.proven = 0
            if self.proven != serving.generation or _missing(loaded, serving):
                await self._load_missing(client, loaded, serving)
                await asyncio.to_thread(prove, self.url, serving)
                self.proven = serving.generation
            self.refuted, self.fault = 0, ""
            await self._unload_others(client, loaded, serving)
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

    async def _loaded(self, client: httpx.AsyncClient) -> list[str]:
        """The names of its models. The name of an adapter holds its digest, so that the folder
        it was loaded from does not matter."""
        answer = await client.get(
            f"{self.url}/v1/models", headers=authorisation(), timeout=_ASK_TIMEOUT_S
        )
        answer.raise_for_status()
        return [entry["id"] for entry in answer.json()["data"]]

    async def _load_missing(
        self, client: httpx.AsyncClient, loaded: list[str], serving: Serving
    ) -> None:
        for adapter in _missing(loaded, serving):
            await self._load(client, adapter.name(serving.alias), adapter)

    async def _load(self, client: httpx.AsyncClient, name: str, adapter: ServedAdapter) -> None:
        answer = await client.post(
            f"{self.url}/v1/load_lora_adapter",
            json={"lora_name": name, "lora_path": str(adapter.folder)},
            headers=authorisation(),
            timeout=_LOAD_TIMEOUT_S,
        )
        if not answer.is_success:
            raise NotProven(f"it does not load {adapter.folder}: {answer.text[:300]}")

    async def _unload_others(
        self, client: httpx.AsyncClient, loaded: list[str], serving: Serving
    ) -> None:
        """Drop adapters of earlier generations once nobody waits for an answer of theirs."""
        wanted = {adapter.name(serving.alias) for adapter in serving.adapters}
        for name in _ours(loaded, serving):
            if name not in wanted and not self.in_flight:
                await client.post(
                    f"{self.url}/v1/unload_lora_adapter",
                    json={"lora_name": name},
                    headers=authorisation(),
                    timeout=_LOAD_TIMEOUT_S,
                )


def _ours(loaded: list[str], serving: Serving) -> list[str]:
    return [name for name in loaded if name.startswith(f"{serving.alias}-")]


def _missing(loaded: list[str], serving: Serving) -> list[ServedAdapter]:
    return [each for each in serving.adapters if each.name(serving.alias) not in loaded]


def prove(url: str, serving: Serving) -> None:
    """Play the probe mazes with the champion.

    Raises:
        NotProven: it says something else than when it was evaluated.
        httpx.HTTPError: the server does not answer.
    """
    player = ChatPlayer(
        f"{url}/v1",
        serving.champion.name(serving.alias),
        serving.mazes,
        serving.max_action_tokens,
        os.environ.get("VLLM_API_KEY"),
        timeout_s=60,
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


def authorisation() -> dict[str, str]:
    """The key of the replicas is the key of the door."""
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
