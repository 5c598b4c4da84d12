"""What stages hand to each other and leave behind: frozen records, each written last, atomically.

A record names the digest of the inputs it was made from. A stage looks for the record of its
inputs, asks whether the world still agrees, and only then skips its work.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from uuid import uuid4

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from configs.schema import GateConfig
from tasks.backends.protocols import Cluster, Endpoint, Image


def _one_line(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("use one line of printable characters")
    return text


Words = Annotated[str, Field(min_length=2, max_length=500), AfterValidator(_one_line)]
"""One line for people."""


class Record(BaseModel):
    """A finished stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    stage: ClassVar[str]

    inputs: str
    """Digest of everything the result depends on."""


class ImageRecord(Record):
    stage = "image"
    image: Image


class ClusterRecord(Record):
    stage = "cluster"
    cluster: Cluster


class TrainRecord(Record):
    stage = "train"
    step: int
    attempts: int
    seconds: float
    adapter: Path
    adapter_digest: str


class PlayedChampion(BaseModel):
    """The adapter in service that a candidate was played against."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    step: int
    adapter_digest: str
    results: Path | None
    """None where its files are gone or changed, so that nobody can play it again."""


class EvaluateRecord(Record):
    stage = "evaluate"
    step: int
    adapter: Path
    adapter_digest: str
    mazes_digest: str
    num_mazes: int
    num_solved_base: int
    num_solved: int
    base_results: Path
    results: Path
    champion: PlayedChampion | None
    """None while no other adapter was ever put to service."""
    held_out: tuple[Path, ...]
    """Folders with the adapter's results on the mazes held out beside the fixed ones."""


class Comparison(BaseModel):
    """A candidate against another player of the same mazes; they are told by their seeds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    """Of the other's adapter, or of the base."""
    num_solved: int
    """By the other."""
    wins: tuple[int, ...]
    losses: tuple[int, ...]
    p_value: float
    """Exact McNemar, two-sided."""


class HeldOutScore(BaseModel):
    """What a candidate made of mazes beside the fixed ones; it decides nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    mazes_digest: str
    num_mazes: int
    num_solved: int
    interval: tuple[float, float]


class GateRecord(Record):
    """Whether an adapter may serve. Its inputs are those of the evaluation it judges."""

    stage = "gate"
    run_id: str
    step: int
    adapter: Path
    adapter_digest: str
    base_digest: str
    image_digest: str
    mazes_digest: str
    num_mazes: int
    num_solved: int
    interval: tuple[float, float]
    """Wilson, 95 %, of the share of solved mazes."""
    base: Comparison
    champion_digest: str | None
    """The adapter in service then; None where there was no other."""
    champion: Comparison | None
    """None also where the champion could not be played again."""
    held_out: tuple[HeldOutScore, ...]
    policy: GateConfig
    promoted: bool
    reason: str
    """One line: every rule that was broken, or what speaks for the adapter."""


class Promotion(BaseModel):
    """Who put an adapter to service, when and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: Literal["gate", "operator", "rollback"]
    who: Words
    why: Words
    when: AwareDatetime

    @classmethod
    def now(cls, by: Literal["gate", "operator", "rollback"], who: str, why: str) -> Self:
        """Raises ValueError where `who` or `why` is no line of 2 to 500 printable characters."""
        return cls(by=by, who=who, why=why, when=datetime.now(UTC))


class HostRecord(Record):
    stage = "host"
    endpoint: Endpoint
    adapter_name: str
    adapter_digest: str
    gate: str
    """Inputs of the gate's record that it is served by."""
    promotion: Promotion


def save(record: Record, folder: Path) -> None:
    """Write `<stage>.json`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{record.stage}.json", record.model_dump_json(indent=1) + "\n")


def find[AnyRecord: Record](kind: type[AnyRecord], inputs: str, folder: Path) -> AnyRecord | None:
    """The record of exactly these inputs; half-written, older or foreign ones count as absent."""
    record = newest(kind, folder)
    return record if record and record.inputs == inputs else None


def newest[AnyRecord: Record](kind: type[AnyRecord], folder: Path) -> AnyRecord | None:
    """The record of whatever inputs the stage had last, or None."""
    try:
        return kind.model_validate_json((folder / f"{kind.stage}.json").read_text())
    except (FileNotFoundError, ValueError):  # no JSON, not even text, or another shape
        return None


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    # Under a name of its own, since writers may sit on several machines.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
