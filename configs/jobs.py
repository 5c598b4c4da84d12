"""What the control plane hands to a job inside the image: one resolved JSON file each.

The job finds every path here and spells none itself. Its answers are files at these paths.
"""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from configs.schema import PostTrainConfig


class Job(BaseModel):
    """A frozen job description, written by a stage and read by one program."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.model_validate_json(path.read_text())

    def write(self, path: Path) -> Path:
        path.write_text(self.model_dump_json(indent=1) + "\n")
        return path


class TrainJob(Job):
    """Train, or go on training, in a run directory."""

    run_id: str
    attempt: int = Field(ge=1)
    config: PostTrainConfig
    base_digest: str
    checkpoints: Path
    """global_step_N folders; complete ones hold COMMITTED.json."""
    adapters: Path
    """step_N folders with a PEFT adapter and manifest.json."""
    metrics: Path
    """metrics.jsonl."""
    attempts: Path
    """N.json for each attempt taken: a higher number than this job's own ends it."""
    scratch: Path
    """Files worth nothing after the attempt: logs, rows, the adapter on its way to the server."""


class HeldOut(Job):
    """Mazes that neither the fixed set nor training has, drawn when they are played."""

    height: int
    width: int
    num_mazes: int = Field(ge=1)
    """How many at most: of small ones training may leave fewer."""
    output: Path
    """Folder that gets episodes.jsonl and, last, summary.json."""


class EvaluateJob(Job):
    """Play the fixed mazes with the base (no adapter) or with one adapter.

    A set whose summary.json is there is not played again.
    """

    config: PostTrainConfig
    adapter: Path | None
    output: Path
    """Folder that gets episodes.jsonl and, last, summary.json."""
    held_out: tuple[HeldOut, ...] = ()
    """What to play beside the fixed mazes."""
    scratch: Path


class Committed(BaseModel):
    """COMMITTED.json: the last file of a complete checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    attempt: int
    world_size: int
    files: dict[str, str]
    """Relative name to sha256."""
    sizes: dict[str, int]
    """Relative name to bytes."""


class AdapterManifest(BaseModel):
    """manifest.json of a published adapter."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    """Of the adapter's files, without this manifest."""
    base_digest: str
    tokenizer_digest: str
    """Of the base's tokenizer and its settings."""
    chat_template_digest: str
    """Of the template that the training rendered its conversations with."""
    run_id: str
    step: int
    attempt: int
    files: dict[str, str]


class MetricsLine(BaseModel):
    """One line of metrics.jsonl: what one training step measured.

    A step that was trained again after a crash has two lines; the later one counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    attempt: int
    wall_time_ms: int
    values: dict[str, float]


class EvaluationSummary(BaseModel):
    """summary.json: the outcome of every maze of a set, in the set's order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mazes_digest: str
    num_mazes: int
    num_solved: int
    solved: tuple[bool, ...]
    turns: tuple[int, ...]
    turns_needed: tuple[int, ...]
    ends: tuple[str, ...]
    """How each episode ended: solved, stopped early, out of turns; out of context where a maze
    larger than the fixed ones was too much for the model's context."""
    seconds: float


class SolveJob(Job):
    """Play one maze through an endpoint."""

    config: PostTrainConfig
    url: str
    model: str
