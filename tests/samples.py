"""Runs to test with, and jobs that leave in them what the real programs leave."""

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.digests import digest_of, digest_of_file
from configs.jobs import (
    AdapterManifest,
    Committed,
    EvaluateJob,
    EvaluationSummary,
    MetricsLine,
    TrainJob,
)
from configs.loader import load_config
from configs.mazes import MazeSet, load_maze_set
from configs.schema import PostTrainConfig
from tasks import jobs
from tasks.backends.protocols import JobStatus
from tasks.check import train_job
from tasks.context import Context
from tasks.home import Home
from tasks.run_dir import create_run
from tests.fakes import (
    IMAGE,
    FakeBackends,
    FakeClusters,
    FakeJobs,
    FakeModels,
    FakeTracker,
    Program,
)
from tests.walks import episode, perfect, write_results


def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages look at once instead of every second."""
    monkeypatch.setattr(jobs, "_POLL_S", 0)


def reason(action: Callable[[], Any]) -> str:
    """The one line with which `action` is refused."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def make_config(folder: Path, **overrides: Any) -> PostTrainConfig:
    """The smoke profile on a base model of four bytes; `train__steps=8` sets train.steps."""
    base = folder / "base"
    if not base.exists():
        write_base_model(base)
    settings = {"model.path": str(base), "train.steps": 6, "train.checkpoint_every_steps": 2}
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config("smoke", settings | given)


def make_context(folder: Path, **overrides: Any) -> Context:
    """A new run in a home below `folder`, with fakes for everything outside; it is tracked."""
    home = Home(folder / "home")
    for each in (home.runs, home.hosting):
        each.mkdir(parents=True, exist_ok=True)
    run = create_run(home.runs, make_config(folder, **overrides), IMAGE.digest)
    tracker = FakeTracker(opened={run.run_id})
    unused: Any = None
    jobs = FakeJobs()
    backends = FakeBackends(unused, FakeClusters(jobs), FakeModels(), tracker, jobs)
    return Context(run, home, backends)


def write_base_model(folder: Path) -> Path:
    """A complete checkpoint with one weight."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3_vl"}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def trains(to: int, then: JobStatus = "succeeded") -> Program:
    """The trainer: goes on from the newest checkpoint, one step a poll, and ends at step `to`."""

    def program(file: Path) -> Iterator[JobStatus]:
        job = TrainJob.read(file)
        markers = job.checkpoints.glob("global_step_*/COMMITTED.json")
        first = max((Committed.model_validate_json(m.read_text()).step for m in markers), default=0)
        yield "running"
        if first >= job.config.train.steps:
            publish_adapter(job, first)
        for step in range(first + 1, to + 1):
            train_step(job, step)
            yield "running"
        yield then

    return program


def train_step(job: TrainJob, step: int, success: float = 0.5) -> None:
    """What a step leaves, in the trainer's order: metrics, and where due checkpoint, adapter."""
    values = {"environment/success": success, "timing/step": 1.0}
    line = MetricsLine(step=step, attempt=job.attempt, wall_time_ms=1000 * step, values=values)
    with job.metrics.open("a") as file:
        file.write(line.model_dump_json() + "\n")
    settings = job.config.train
    if step % settings.checkpoint_every_steps == 0 or step == settings.steps:
        commit_checkpoint(job.checkpoints, step, job.attempt)
        publish_adapter(job, step)


def commit_checkpoint(checkpoints: Path, step: int, attempt: int) -> Path:
    folder = checkpoints / f"global_step_{step}"
    folder.mkdir(parents=True)
    (folder / "weights.pt").write_bytes(f"weights of step {step}".encode())
    committed = Committed(
        step=step,
        attempt=attempt,
        world_size=1,
        files={"weights.pt": digest_of_file(folder / "weights.pt")},
        sizes={"weights.pt": (folder / "weights.pt").stat().st_size},
    )
    (folder / "COMMITTED.json").write_text(committed.model_dump_json())
    return folder


def publish_adapter(job: TrainJob, step: int) -> Path:
    """An adapter with its manifest; one that is there is kept, half of one is in the way."""
    folder = job.adapters / f"step_{step}"
    if (folder / "manifest.json").is_file():
        return folder
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"r": 32}')
    weights = f"adapter of step {step}, seed {job.config.train.seed}"
    (folder / "adapter_model.safetensors").write_bytes(weights.encode())
    files = {path.name: digest_of_file(path) for path in folder.iterdir()}
    manifest = AdapterManifest(
        digest=digest_of(files),
        base_digest=job.base_digest,
        tokenizer_digest="t",
        chat_template_digest="c",
        run_id=job.run_id,
        step=step,
        attempt=job.attempt,
        files=files,
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder


def plays(num_solved: int, num_played: int = 64, then: JobStatus = "succeeded") -> Program:
    """The evaluation: plays the first `num_played` mazes and solves the first `num_solved`."""
    return solves(range(num_solved), num_played, then)


def solves(
    indices: Collection[int], num_played: int = 64, then: JobStatus = "succeeded"
) -> Program:
    """The evaluation: solves the mazes at these places; of those held out, every second one.

    As the real one does, it plays what has no summary.
    """

    def program(file: Path) -> Iterator[JobStatus]:
        job = EvaluateJob.read(file)
        yield "running"
        if then == "succeeded":
            if not (job.output / "summary.json").is_file():
                mazes = load_maze_set(job.config.mazes.test_set)
                outcomes = tuple(index in indices for index in range(num_played))
                write_walks(job.output, mazes, outcomes, _who(job))
            for held_out in job.held_out:
                outcomes = tuple(index % 2 == 0 for index in range(held_out.num_mazes))
                write_outcomes(held_out.output, held_out.output.name, outcomes)
        yield then

    return program


def _who(job: EvaluateJob) -> str:
    return job.adapter.name if job.adapter else "base"


def write_walks(folder: Path, mazes: MazeSet, solved: tuple[bool, ...], who: str) -> None:
    """What a play of a set leaves: perfect walks and early stops, and words of the player's own."""
    played = zip(mazes.mazes, solved, strict=False)
    walks = [episode(maze, perfect(maze) if won else "S", [f"{who}:"]) for maze, won in played]
    write_results(folder, mazes, walks)


def write_outcomes(folder: Path, mazes_digest: str, solved: tuple[bool, ...]) -> None:
    """The summary of a play of any set."""
    turns = (5,) * len(solved)
    summary = EvaluationSummary(
        mazes_digest=mazes_digest,
        num_mazes=len(solved),
        num_solved=sum(solved),
        solved=solved,
        turns=turns,
        turns_needed=turns,
        ends=tuple("solved" if each else "out of turns" for each in solved),
        seconds=1.0,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "episodes.jsonl").write_text("{}\n" * len(solved))
    (folder / "summary.json").write_text(summary.model_dump_json())


def write_adapter(context: Context, step: int, **changes: Any) -> Path:
    """The adapter of a step as an attempt would publish it; `changes` are to its manifest."""
    job = train_job(context.run, attempt=1)
    folder = publish_adapter(job, step)
    file = folder / "manifest.json"
    manifest = AdapterManifest.model_validate_json(file.read_text())
    file.write_text(manifest.model_copy(update=changes).model_dump_json())
    return folder
