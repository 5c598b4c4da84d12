"""An application of Ray Serve LLM: adapters come from the object store when they are asked for.

Ray names an adapter `base:` and its folder below `dynamic_lora_loading_path`: in the project's
store that is its digest. It lists what the store has, not what a process has loaded; so what was
proven is known by the processes that it was proven of, which the dashboard names.
"""

from typing import Any

import httpx

from configs.serving import BASE_NAME, RayApp, ServedAdapter, Serving
from containers.server.model_server import ASK_TIMEOUT_S, LOAD_TIMEOUT_S, Holding, NotProven


class NotRunning(httpx.TransportError):
    """A part of the application has no process."""


class RayServeApp:
    """Implements `ModelServer`."""

    socket = None

    def __init__(self, app: RayApp) -> None:
        self._app = app
        self._processes: tuple[str, ...] = ()
        self._loaded: set[str] = set()

    @property
    def name(self) -> str:
        return self._app.name

    @property
    def url(self) -> str:
        return self._app.url

    def model(self, name: str, digest: str) -> str:
        return BASE_NAME if name == BASE_NAME else f"{BASE_NAME}:{digest}"

    async def holding(self, ask: httpx.AsyncClient, serving: Serving) -> Holding:
        processes = await self._running()
        is_new = processes != self._processes
        if is_new:
            self._processes, self._loaded = processes, set()
        missing = tuple(each for each in serving.adapters if each.digest not in self._loaded)
        return Holding(is_new=is_new, missing=missing)

    async def load(self, ask: httpx.AsyncClient, adapter: ServedAdapter, serving: Serving) -> None:
        """By one token of its own."""
        asked = {
            "model": self.model(adapter.name(serving.alias), adapter.digest),
            "messages": [{"role": "user", "content": "?"}],
            "max_tokens": 1,
        }
        answer = await ask.post("/v1/chat/completions", json=asked, timeout=LOAD_TIMEOUT_S)
        if not answer.is_success:
            raise NotProven(f"it does not load {adapter.digest[:12]}: {answer.text[:300]}")
        self._loaded.add(adapter.digest)

    async def unload(self, ask: httpx.AsyncClient, name: str) -> None:
        """Ray drops the adapter that was asked for the longest ago by itself."""

    async def _running(self) -> tuple[str, ...]:
        """The processes of the application.

        Raises:
            NotRunning: a part of it has none.
        """
        try:
            async with httpx.AsyncClient(timeout=ASK_TIMEOUT_S) as client:
                answer = await client.get(f"{self._app.dashboard}/api/serve/applications/")
        except httpx.TransportError as error:  # which says nothing of the application
            raise ValueError(f"{self._app.dashboard} does not answer: {error!r}") from None
        app = answer.raise_for_status().json()["applications"].get(self._app.name, {})
        parts = app.get("deployments", {}).values()
        running = [[each for each in part["replicas"] if _runs(each)] for part in parts]
        if not running or not all(running):
            raise NotRunning(f"{self._app.name} is {app.get('status', 'not there')}")
        return tuple(sorted(each["replica_id"] for part in running for each in part))


def _runs(process: dict[str, Any]) -> bool:
    return process["state"] == "RUNNING"
