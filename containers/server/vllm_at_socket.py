"""vLLM's OpenAI server at a socket: adapters are loaded from folders on request."""

from pathlib import Path

import httpx

from configs.serving import ServedAdapter, Serving
from containers.server.model_server import ASK_TIMEOUT_S, LOAD_TIMEOUT_S, Holding, NotProven


class VllmAtSocket:
    """Implements `ModelServer`."""

    url = "http://replica"
    """Any host will do: the socket is what leads there."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    @property
    def name(self) -> str:
        return self.socket.stem

    def model(self, name: str, digest: str) -> str:
        return name

    async def holding(self, ask: httpx.AsyncClient, serving: Serving) -> Holding:
        """By the names of its models. The name of an adapter holds its digest, so that the folder
        it was loaded from does not matter."""
        answer = await ask.get("/v1/models", timeout=ASK_TIMEOUT_S)
        answer.raise_for_status()
        loaded = [entry["id"] for entry in answer.json()["data"]]
        ours = [name for name in loaded if name.startswith(f"{serving.alias}-")]
        wanted = {adapter.name(serving.alias): adapter for adapter in serving.adapters}
        return Holding(
            is_new=not ours,
            missing=tuple(adapter for name, adapter in wanted.items() if name not in loaded),
            others=tuple(name for name in ours if name not in wanted),
        )

    async def load(self, ask: httpx.AsyncClient, adapter: ServedAdapter, serving: Serving) -> None:
        answer = await ask.post(
            "/v1/load_lora_adapter",
            json={"lora_name": adapter.name(serving.alias), "lora_path": str(adapter.folder)},
            timeout=LOAD_TIMEOUT_S,
        )
        if not answer.is_success:
            raise NotProven(f"it does not load {adapter.folder}: {answer.text[:300]}")

    async def unload(self, ask: httpx.AsyncClient, name: str) -> None:
        await ask.post("/v1/unload_lora_adapter", json={"lora_name": name}, timeout=LOAD_TIMEOUT_S)
