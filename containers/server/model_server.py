"""What the door needs of a model server, whichever program it is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from configs.serving import ServedAdapter, Serving

ASK_TIMEOUT_S = 5
LOAD_TIMEOUT_S = 120


class NotProven(RuntimeError):
    """A replica does not serve what it should; says what it does instead."""


@dataclass(frozen=True)
class Holding:
    """What a server has loaded, as far as the wish is concerned."""

    is_new: bool
    """It is not the process that was looked at before, or has lost what that had."""
    missing: tuple[ServedAdapter, ...]
    others: tuple[str, ...] = ()
    """Adapters of earlier wishes, by the names that it knows them by."""


class ModelServer(Protocol):
    """A server of the OpenAI API with adapters that come and go.

    `ask` is a client of its address. Every method may raise httpx.TransportError where the server
    is not there, and another httpx.HTTPError, ValueError or KeyError where it answers oddly.
    """

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """Its address, without /v1."""
        ...

    @property
    def socket(self) -> Path | None:
        """What leads to that address; None: the network."""
        ...

    def model(self, name: str, digest: str) -> str:
        """What it calls a model that the door calls so."""
        ...

    async def holding(self, ask: httpx.AsyncClient, serving: Serving) -> Holding: ...

    async def load(self, ask: httpx.AsyncClient, adapter: ServedAdapter, serving: Serving) -> None:
        """Have an adapter that is missing.

        Raises:
            NotProven: it cannot be loaded; says why.
        """
        ...

    async def unload(self, ask: httpx.AsyncClient, name: str) -> None: ...
