"""Where a run stands, read from its files: its stages, steps and attempts, and what came of them.

Nothing here takes a lock, writes, or asks a server, so whoever looks disturbs nobody.
"""

import statistics
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from configs.jobs import MetricsLine
from tasks.attempts import Attempt, all_attempts
from tasks.holder import read_turn, turn_file
from tasks.home import Home
from tasks.records import (
    ClusterRecord,
    EvaluateRecord,
    GateRecord,
    HostRecord,
    ImageRecord,
    Record,
    TrainRecord,
    newest,
)
from tasks.run_dir import Run, open_run

SUCCESS = "environment/success"
ENTROPY = "policy/policy_entropy"
STEP_S = "timing/step"
_RECENT_STEPS = 50
_STEPS_OF_GUESS = 10

StageState = Literal["done", "running", "waiting", "stopped", "left out"]
RunStanding = Literal["running", "hosted", "not promoted", "failed", "interrupted"]


@dataclass(frozen=True)
class Stage:
    """One stage, for people."""

    name: str
    state: StageState
    detail: str
    percent: float


@dataclass(frozen=True)
class Span:
    """The first and the last step that an attempt has trained."""

    first: MetricsLine
    last: MetricsLine


@dataclass(frozen=True)
class Records:
    """What stages have left that still holds; each belongs to the ones before it."""

    image: ImageRecord | None
    cluster: ClusterRecord | None
    train: TrainRecord | None
    evaluate: EvaluateRecord | None
    gate: GateRecord | None
    host: HostRecord | None


@dataclass(frozen=True)
class Progress:
    """A run at one moment."""

    run: Run
    at_work: bool
    """A flow works on it."""
    records: Records
    attempts: tuple[Attempt, ...]
    spans: dict[int, Span]
    """By attempt."""
    recent: tuple[MetricsLine, ...]
    """The last steps as they were trained, one trained anew included twice."""

    @property
    def standing(self) -> RunStanding:
        gate = self.records.gate
        if self.at_work:
            return "running"
        if gate and (self.records.host or not gate.promoted):
            return "hosted" if gate.promoted else "not promoted"
        return "failed" if self.attempts and self.attempts[-1].cause else "interrupted"

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        return tuple(_stages(self))

    @property
    def step(self) -> int:
        return self.recent[-1].step if self.recent else 0

    @property
    def num_steps(self) -> int:
        return self.run.config.train.steps

    @property
    def success(self) -> float | None:
        """Share of the last step's episodes that ended in the target."""
        return self.recent[-1].values.get(SUCCESS) if self.recent else None

    @property
    def step_s(self) -> float | None:
        """Seconds that a step takes: the median of the last ten."""
        took = [line.values[STEP_S] for line in self.recent if STEP_S in line.values]
        return statistics.median(took[-_STEPS_OF_GUESS:]) if took else None

    @property
    def left_s(self) -> float | None:
        """Seconds of training that are left; None where nobody can tell."""
        return None if self.step_s is None else self.step_s * (self.num_steps - self.step)


class Watch:
    """Follows one run: of its metrics, each look reads only what is new."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps = run.follow_steps()
        self._recent: deque[MetricsLine] = deque(maxlen=_RECENT_STEPS)
        self._spans: dict[int, Span] = {}

    def look(self) -> Progress:
        """Where it stands now."""
        for line in self._steps.read():
            self._recent.append(line)
            span = self._spans.get(line.attempt)
            self._spans[line.attempt] = Span(span.first if span else line, line)
        run = self._run
        known = all_attempts(run.attempts) if run.attempts.is_dir() else []
        records, at_work = read_records(run), is_at_work(run, known)
        return Progress(
            run=run,
            at_work=at_work,
            records=records,
            attempts=tuple(known),
            spans=dict(self._spans),
            recent=tuple(self._recent),
        )


def newest_runs(home: Home, num_runs: int) -> list[Run]:
    """The runs that were started last, newest first; one of another version is left out."""
    files = sorted(home.runs.glob("*/run.json"), key=lambda f: f.stat().st_mtime, reverse=True)
    found: list[Run] = []
    for file in files[: 2 * num_runs]:
        with suppress(ValueError):
            found.append(open_run(home.runs, file.parent.name))
    return found[:num_runs]


def read_records(run: Run) -> Records:
    """The records of this configuration, up to the first that is not of the one before it."""
    folder = run.records
    image, train = newest(ImageRecord, folder), newest(TrainRecord, folder)
    train = train if train and train.inputs == run.file.identity else None
    scores = newest(EvaluateRecord, folder) if train else None
    if scores and train and scores.step == train.step:
        scores = scores if scores.adapter_digest == train.adapter_digest else None
    gate = newest(GateRecord, folder)
    gate = gate if gate and scores and gate.inputs == scores.inputs else None
    host = newest(HostRecord, folder)
    return Records(
        image=image if image and image.inputs == run.file.image_digest else None,
        cluster=newest(ClusterRecord, folder),
        train=train,
        evaluate=scores,
        gate=gate,
        host=host if host and gate and host.gate == gate.inputs else None,
    )


def is_at_work(run: Run, known: list[Attempt]) -> bool:
    """A flow works on it; of a flow on another machine only its open attempt can tell."""
    turn = read_turn(run)
    if turn is None:
        return False
    return turn.process() is not None if turn.is_here else bool(known and known[-1].ended is None)


def _stages(progress: Progress) -> Iterator[Stage]:
    """Each is done, or left out; the first that is neither runs if a flow works on the run."""
    records, is_next = progress.records, True
    for kind, record in _by_stage(progress):
        name = kind.stage
        if record:
            yield Stage(name, "done", _result(progress, record), 100.0)
        elif name == HostRecord.stage and records.gate and not records.gate.promoted:
            yield Stage(name, "left out", "what served before goes on", 100.0)
        elif name == ClusterRecord.stage and records.evaluate:
            yield Stage(name, "left out", "nothing was left to train or to play", 100.0)
        else:
            state: StageState = (
                ("running" if progress.at_work else "stopped") if is_next else "waiting"
            )
            percent = _percent(progress) if name == TrainRecord.stage else 0.0
            detail = _outlook(progress, state) if name == TrainRecord.stage else ""
            yield Stage(name, state, detail, percent)
            is_next = False


def _by_stage(progress: Progress) -> Iterator[tuple[type[Record], Record | None]]:
    """Stages in order with their records; a cluster of an earlier flow is not this one's."""
    records = progress.records
    cluster = records.cluster
    if progress.at_work and not records.evaluate and _is_older_than_turn(progress.run):
        cluster = None
    yield ImageRecord, records.image
    yield ClusterRecord, cluster
    yield TrainRecord, records.train
    yield EvaluateRecord, records.evaluate
    yield GateRecord, records.gate
    yield HostRecord, records.host


def _is_older_than_turn(run: Run) -> bool:
    try:
        record = run.records / f"{ClusterRecord.stage}.json"
        return record.stat().st_mtime < turn_file(run).stat().st_mtime
    except FileNotFoundError:
        return False


def _percent(progress: Progress) -> float:
    return min(100.0, 100.0 * progress.step / progress.num_steps)


def _outlook(progress: Progress, state: StageState) -> str:
    """How far training is, and what is left of it while it goes on."""
    if not progress.recent:
        return "before the first step" if state == "running" else ""
    said = [f"step {progress.step} of {progress.num_steps}"]
    left_s = progress.left_s if state == "running" else None
    if left_s is not None:
        said.append(f"{duration(left_s)} left")
    if progress.success is not None:
        said.append(f"batch success {progress.success:.0%}")
    if left_s is not None and progress.step_s is not None:
        said.append(f"{duration(progress.step_s)} a step")
    return ", ".join(said)


def _result(progress: Progress, record: Record) -> str:
    match record:
        case ImageRecord():
            return record.image.digest[:12]
        case ClusterRecord():
            return f"{record.cluster.num_nodes} nodes"
        case TrainRecord():
            return f"{record.step} steps in {duration(record.seconds)}"
        case EvaluateRecord():
            solved = f"{record.num_solved} of {record.num_mazes} mazes"
            return f"step {record.step}: {solved}, {record.num_solved_base} before"
        case GateRecord():
            return f"{'promoted' if record.promoted else 'not promoted'}: {record.reason}"
        case HostRecord():
            return f"{record.endpoint.url} as {record.adapter_name}"
    return ""


def duration(seconds: float) -> str:
    """As people say it: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
