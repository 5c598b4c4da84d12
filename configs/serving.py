"""What is to be served: one file that hosting writes and the door and its replicas read.

The file is replaced whole. A rising generation tells a wish from the one before it.
"""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from configs.mazes import MazeLayout
from configs.schema import MazeConfig

BASE_NAME = "base"


class ServingFact(BaseModel):
    """A frozen part of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ServedAdapter(ServingFact):
    """An adapter under a name that no other adapter ever has."""

    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    folder: Path

    def name(self, alias: str) -> str:
        """The model name that a replica knows it by, and that each of its answers carries."""
        return f"{alias}-{self.digest[:12]}"


class Probe(ServingFact):
    """A maze with what was said on it when the adapter and the base were evaluated."""

    layout: MazeLayout
    replies: tuple[str, ...]
    base_replies: tuple[str, ...]


class RayApp(ServingFact):
    """A model server that is an application of Ray Serve LLM."""

    name: str
    url: str
    """Where it answers."""
    dashboard: str
    """Of its Ray cluster, which tells what processes the application consists of."""


class Serving(ServingFact):
    """serving.json."""

    generation: int = Field(ge=1)
    alias: str
    """The model name that users ask for: the champion."""
    base_digest: str
    champion: ServedAdapter
    previous: ServedAdapter | None
    """Kept loaded, so that going back takes seconds."""
    probes: tuple[Probe, ...] = Field(min_length=1)
    replicas: tuple[Path | RayApp, ...] = Field(min_length=1)
    """The model servers: sockets, or applications of Ray. vLLM's own server loads any adapter for
    whoever reaches it, so it has no port: a socket is reached by its owner only."""
    mazes: MazeConfig
    max_action_tokens: int

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.model_validate_json(path.read_text())

    @property
    def adapters(self) -> tuple[ServedAdapter, ...]:
        """Those that every replica shall have loaded."""
        return (self.champion, self.previous) if self.previous else (self.champion,)


class ReplicaStatus(ServingFact):
    """One replica as the door knows it."""

    name: str
    proven: int
    """Generation whose champion it has been proven to serve; 0 for none."""
    in_flight: int
    refuted: int
    """Generation whose champion it was found not to serve; 0 for none."""
    fault: str
    """Why it takes no traffic of the wanted generation; empty where it does."""


class DoorStatus(ServingFact):
    """What the door says of itself."""

    file: Path
    """The wish it follows: another home's door follows another."""
    wanted: int
    """Generation of the file."""
    serving: int
    """Generation whose champion answers to the alias; 0 before the first."""
    champion_digest: str
    replicas: tuple[ReplicaStatus, ...]
