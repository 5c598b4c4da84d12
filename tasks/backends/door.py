"""The door in front of the model servers, as the control plane asks it (containers/server)."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from configs.serving import DoorStatus, RayApp, Serving
from tasks.backends.protocols import Endpoint, HostedModel

_POLL_S = 0.2
_TIMEOUT_S = 10


class Door:
    """A door that may not stand there yet.

    Args:
        url: Its address.
        file: The wish it has to follow; the door of another home follows another.
    """

    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self._file = file

    def serves(self, wish: Serving) -> bool:
        """Every server is proven to serve it, and it is what answers."""
        status = self.status()
        if status is None or status.file != self._file:
            return False
        if (status.serving, status.champion_digest) != (wish.generation, wish.champion.digest):
            return False
        proven = [replica.proven == wish.generation for replica in status.replicas]
        return len(proven) == len(wish.replicas) and all(proven)

    def await_proof(
        self,
        wish: Serving,
        timeout_s: float,
        look_at: str,
        hindrance: Callable[[], str] = lambda: "",
        last_words: Callable[[], str] = lambda: "",
    ) -> None:
        """Return once it is served and nothing hinders any more.

        Raises:
            RuntimeError: a server does not serve what was measured, or none came up in time.
        """
        deadline = time.monotonic() + timeout_s
        while (why := hindrance()) or not self.serves(wish):
            fault = self.fault(wish)
            if time.monotonic() > deadline:
                said = "; ".join(filter(None, [why, fault, last_words()]))
                raise RuntimeError(f"the model server does not serve ({said}); see {look_at}")
            time.sleep(_POLL_S)

    def fault(self, wish: Serving) -> str:
        """Why it is not served yet, in words.

        Raises:
            RuntimeError: a server was found to serve something else.
        """
        status = self.status()
        if status is None:
            return "no door"
        for replica in status.replicas:
            if replica.refuted == wish.generation:
                raise RuntimeError(f"{replica.name}: {replica.fault}")
        return "; ".join(replica.fault for replica in status.replicas if replica.fault)

    def status(self) -> DoorStatus | None:
        """None where it does not answer."""
        try:
            answer = httpx.get(f"{self.url}/status", timeout=_TIMEOUT_S, headers=_authorisation())
            return DoorStatus.model_validate_json(answer.raise_for_status().text)
        except (httpx.HTTPError, ValueError):
            return None

    def endpoint(self, wish: Serving) -> Endpoint:
        names = {"base": wish.base_digest, wish.alias: wish.champion.digest}
        return Endpoint(url=f"{self.url}/v1", models=names)


def wish_for(model: HostedModel, generation: int, replicas: tuple[Path | RayApp, ...]) -> Serving:
    """What the door and the servers are told."""
    return Serving(
        generation=generation,
        alias=model.alias,
        base_digest=model.base_digest,
        champion=model.champion,
        previous=model.previous,
        probes=model.probes,
        replicas=replicas,
        mazes=model.mazes,
        max_action_tokens=model.max_action_tokens,
    )


def server_arguments(model: HostedModel) -> tuple[str, ...]:
    """What a model server is started with, but for its socket and the serving file."""
    return (
        *("--model", str(model.base), "--device", model.device, "--dtype", model.dtype),
        *("--max-model-len", str(model.max_model_len)),
        *("--max-images", str(model.mazes.max_turns), "--lora-rank", str(model.lora_rank)),
    )


def _authorisation() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
