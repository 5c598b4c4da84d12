"""The run directory: the one module that spells its paths, and the run's identity.

A run is what training depends on: code and environment, base model, mazes, training settings.
Its directory is named by the profile and a digest of these, so the same inputs meet again and
others never mix. Evaluation and hosting settings are inputs of their own stages only.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from configs.digests import digest_of, digest_of_files
from configs.jobs import Committed, MetricsLine
from configs.mazes import MazeSet, load_maze_set
from configs.schema import OPERATIONAL, PostTrainConfig
from tasks.records import write_whole
from tasks.steps import Steps


class RunFile(BaseModel):
    """run.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    identity: str
    image_digest: str
    base_digest: str
    mazes_digest: str
    config: PostTrainConfig


@dataclass(frozen=True)
class Run:
    """An opened run: its file and its folder."""

    file: RunFile
    folder: Path

    @property
    def config(self) -> PostTrainConfig:
        return self.file.config

    @property
    def run_id(self) -> str:
        return self.file.run_id

    @property
    def records(self) -> Path:
        return self.folder / "records"

    @property
    def attempts(self) -> Path:
        return self.folder / "attempts"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def adapters(self) -> Path:
        return self.folder / "adapters"

    def scratch(self, job: str) -> Path:
        """A folder for what one job needs only while it runs, and for its logs."""
        folder = self.folder / "scratch" / job
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def scratch_of_attempt(self, number: int) -> Path:
        """Where an attempt at training has its scratch; not made here."""
        return self.folder / "scratch" / f"attempt-{number}"

    def evaluation(self, inputs: str) -> Path:
        return self.folder / "evals" / inputs[:16]

    def held_out(self, inputs: str, name: str) -> Path:
        """Results on mazes held out beside the fixed ones."""
        return self.evaluation(inputs) / "held-out" / name

    def adapter_folder(self, step: int) -> Path:
        return self.adapters / f"step_{step}"

    def adapter(self, step: int) -> Path:
        """The published adapter of a step.

        Raises:
            ValueError: there is none; lists the steps that have one.
        """
        folder = self.adapter_folder(step)
        if not (folder / "manifest.json").is_file():
            steps = ", ".join(str(step) for step in self.adapter_steps()) or "none yet"
            raise ValueError(f"run {self.run_id} has no adapter of step {step}; it has: {steps}")
        return folder

    def adapter_steps(self) -> list[int]:
        found = self.adapters.glob("step_*/manifest.json")
        return sorted(int(path.parent.name.removeprefix("step_")) for path in found)

    def committed_step(self) -> int:
        """Step of the newest committed checkpoint; 0 before the first."""
        newest_first = sorted(self._markers(), key=_step_of, reverse=True)
        return next((step for marker in newest_first if (step := _read_step(marker))), 0)

    def num_checkpoints(self) -> int:
        """How many committed checkpoints lie on the disk."""
        return len(self._markers())

    def steps(self) -> list[MetricsLine]:
        """One line for each step trained so far, in order; a step trained anew counts once."""
        by_step = {line.step: line for line in self.follow_steps().read()}
        return [by_step[step] for step in sorted(by_step)]

    def follow_steps(self) -> Steps:
        """For whoever looks again and again."""
        return Steps(self.metrics)

    def mazes(self) -> MazeSet:
        return load_maze_set(self.config.mazes.test_set)

    def _markers(self) -> list[Path]:
        return list(self.checkpoints.glob("global_step_*/COMMITTED.json"))


def create_run(runs: Path, config: PostTrainConfig, image_digest: str, run_name: str = "") -> Run:
    """Open the run of this configuration, made if it is new.

    Raises:
        ValueError: one line: the base model or the mazes are unusable or out of the cluster's
            sight, the turn limit is too low, or `run_name` belongs to another configuration.
    """
    check_shared_paths(config, runs)
    base_digest = check_base_model(config.model.path)
    mazes = load_maze_set(config.mazes.test_set)
    check_turn_limit(config, mazes)
    max_len = config.model.max_model_len
    identity = digest_of(
        [image_digest, base_digest, mazes.digest, _training(config), _rendering(config), max_len]
    )
    run_id = run_name or f"{config.name}-{identity[:10]}"
    check_run_id(run_id)
    file = RunFile(
        run_id=run_id,
        identity=identity,
        image_digest=image_digest,
        base_digest=base_digest,
        mazes_digest=mazes.digest,
        config=config,
    )
    folder = runs / run_id
    known = read_run_file(folder)
    if known and known.identity != identity:
        raise ValueError(
            f"run {run_id} belongs to another configuration: give another run name, "
            f"none at all, or delete {folder}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "run.json", file.model_dump_json(indent=1) + "\n")
    return Run(file, folder)


def open_run(runs: Path, run_id: str) -> Run:
    """An existing run.

    Raises:
        ValueError: there is none; lists those that exist.
    """
    check_run_id(run_id)
    file = read_run_file(runs / run_id)
    if file is None:
        known = ", ".join(sorted(path.parent.name for path in runs.glob("*/run.json")))
        raise ValueError(f"no run {run_id!r}; there are: {known or 'none yet'}")
    return Run(file, runs / run_id)


def read_run_file(folder: Path) -> RunFile | None:
    file = folder / "run.json"
    return RunFile.model_validate_json(file.read_text()) if file.is_file() else None


def check_run_id(run_id: str) -> None:
    """Refuse a name that is more than letters, digits and dashes: it becomes a path."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", run_id):
        raise ValueError(
            f"run name {run_id!r}: use at most 63 lower-case letters, digits and dashes"
        )


def check_base_model(folder: Path) -> str:
    """The digest of a base model whose files are all there and readable, its card aside.

    Raises:
        ValueError: one line with what is missing or damaged.
    """
    for name in ("config.json", "tokenizer.json"):
        try:
            json.loads((folder / name).read_text())
        except FileNotFoundError:
            raise ValueError(f"base model {folder} has no {name}: is it a checkpoint?") from None
        except ValueError:
            raise ValueError(f"base model {folder}: {name} is damaged") from None
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ValueError(f"base model {folder} has no *.safetensors weights")
    for path in weights:
        _check_safetensors(path)
    parts = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md"]
    return digest_of_files(parts, folder)


def check_unchanged(run: Run) -> None:
    """Refuse a run whose base model or mazes were changed since: its records speak of others.

    Raises:
        ValueError: one line that names what changed.
    """
    config, file = run.config, run.file
    for what, then, now in (
        (config.model.path, file.base_digest, check_base_model(config.model.path)),
        (config.mazes.test_set, file.mazes_digest, run.mazes().digest),
    ):
        if then != now:
            raise ValueError(
                f"{what} has changed since run {run.run_id} was made: put the old one back, or "
                "start post-train, which makes a run of the new one"
            )


def check_turn_limit(config: PostTrainConfig, mazes: MazeSet) -> None:
    """Refuse a turn limit under which a perfect player could not solve all fixed mazes."""
    max_turns = config.mazes.max_turns
    solvable = mazes.num_solvable(max_turns)
    if solvable < len(mazes.mazes):
        raise ValueError(
            f"mazes.max_turns = {max_turns} lets at most {solvable} of the {len(mazes.mazes)} "
            f"mazes of {mazes.name} be solved: give at least {max(mazes.turns_needed())}"
        )


def check_shared_paths(config: PostTrainConfig, runs: Path) -> None:
    """Refuse paths that the pods of a cluster would look for in vain: jobs get them as they are."""
    if config.cluster.kuberay is None:
        return
    shared = Path(config.cluster.kuberay.volume.mount_path)
    for what, path in (
        ("ARIADNE_HOME", runs.absolute().parent),
        ("model.path", config.model.path),
        ("mazes.test_set", config.mazes.test_set),
    ):
        if not path.is_relative_to(shared):
            raise ValueError(
                f"{what}: {path} is not on the volume that the pods have at {shared}: put it "
                "there, and mount the volume under the same path here"
            )


def _check_safetensors(path: Path) -> None:
    """The header says how long the file must be: a truncated download does not pass."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length) if length < 100_000_000 else b"")
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name[0] != "_"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"base model: {path} is damaged") from None
    if path.stat().st_size != 8 + length + max(ends, default=0):
        raise ValueError(f"base model: {path} is incomplete or damaged")


def _training(config: PostTrainConfig) -> dict[str, Any]:
    """The settings that decide what is learnt."""
    return config.train.model_dump(mode="json", exclude=set(OPERATIONAL))


def _rendering(config: PostTrainConfig) -> dict[str, Any]:
    """How mazes are shown and for how long: the part of their settings that training sees."""
    return config.mazes.model_dump(mode="json", exclude={"test_set"})


def _read_step(marker: Path) -> int:
    try:
        return Committed.model_validate_json(marker.read_text()).step
    except (ValueError, FileNotFoundError):  # being pruned, or damaged: the trainer will say so
        return 0


def _step_of(marker: Path) -> int:
    return int(marker.parent.name.removeprefix("global_step_"))
