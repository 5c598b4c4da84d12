"""One run, followed through its files: read once, then only what is new or has changed.

Nothing here takes a lock or writes: flows and jobs never notice that they are watched.
"""

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel

from configs.jobs import Committed, MetricsLine
from tasks.attempts import Attempt, all_attempts
from tasks.metrics.ledger import Trained
from tasks.records import (
    ClusterRecord,
    EvaluateRecord,
    GateRecord,
    HostRecord,
    ImageRecord,
    TrainRecord,
    newest,
)
from tasks.run_dir import Run
from tasks.watchdog import LAST_STEPS

STAGES = (ImageRecord, ClusterRecord, TrainRecord, EvaluateRecord, GateRecord, HostRecord)
SUCCESS = "environment/success"
PHASES = {
    "generate": "timing/generate",
    "logprobs": "timing/fwd_logprobs_values_reward",
    "train": "timing/train_critic_and_policy",
    "checkpoint": "timing/save_checkpoints",
    "sync": "timing/sync_weights",
}
"""The trainer's timers that add up to a step, but for a rest that is called `other`."""
_RUNNING_MEAN_STEPS = 5
"""Steps that success is averaged over, or half of a run that has fewer than twice as many."""
_CLOCK_MAY_MOVE_S = 60


class _Holder(BaseModel):
    """turn.json, as far as it says who has the run: its own module would load Prefect."""

    host: str
    pid: int
    started: float


class FollowedRun:
    """What is known of a run; `look` brings it up to date."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.attempts: list[Attempt] = []
        self.trained: dict[int, Trained] = {}
        self.last: MetricsLine | None = None
        self.num_trained = 0
        self.num_repeated = 0
        self.success_recent = 0.0
        self.success_best = 0.0
        self.phases_s = dict.fromkeys([*PHASES, "other"], 0.0)
        self.took_s: deque[float] = deque(maxlen=LAST_STEPS)
        self.episodes = self.answers = self.tokens = 0.0
        self.checkpoint: Committed | None = None
        self.checkpoint_time_s = 0.0
        self.checkpoint_took_s: float | None = None
        self.num_checkpoints = 0
        self.stage_times_s: dict[str, float] = {}
        self.gate: GateRecord | None = None
        self._steps = run.follow_steps()
        num_averaged = max(1, min(_RUNNING_MEAN_STEPS, run.config.train.steps // 2))
        self._successes: deque[float] = deque(maxlen=num_averaged)
        self._size = 0
        self._known: dict[str, Any] = {}

    def look(self) -> None:
        """Read what is new.

        Raises:
            OSError, ValueError: a file went away or makes no sense.
        """
        size = self.run.metrics.stat().st_size if self.run.metrics.is_file() else 0
        if size < self._size:
            raise ValueError(f"run {self.run.run_id} was deleted and made anew")
        self._size = size
        for line in self._steps.read():
            self._take(line)
        folder = self.run.attempts
        files = sorted(folder.glob("*.json")) if folder.is_dir() else []
        self.attempts = self._read_once("attempts", files, lambda: all_attempts(folder))
        self._look_at_checkpoints()
        self._look_at_records()

    @property
    def is_open(self) -> bool:
        """Its newest attempt has no end."""
        return bool(self.attempts) and self.attempts[-1].ended is None

    @property
    def is_active(self) -> bool:
        """A flow works on it; of one on another machine the open attempt has to tell."""
        try:
            holder = _Holder.model_validate_json((self.run.folder / "turn.json").read_text())
        except (FileNotFoundError, ValueError):
            return False
        if holder.host != socket.gethostname():
            return self.is_open
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(holder.pid).create_time()
            return abs(started - holder.started) < _CLOCK_MAY_MOVE_S
        return False

    @property
    def stage(self) -> str:
        """Where it is: at its training while an attempt is open, else at the first gap."""
        if self.is_open:
            return TrainRecord.stage
        missing = (kind.stage for kind in STAGES if kind.stage not in self.stage_times_s)
        return next(missing, "done")

    def _take(self, line: MetricsLine) -> None:
        values = line.values
        trained = self.trained.setdefault(line.attempt, Trained.begin(line))
        self.num_trained += 1
        self.num_repeated += any(line.step in t.walls_ms for t in self.trained.values())
        trained.walls_ms[line.step] = line.wall_time_ms
        self.last = line
        self._successes.append(values.get(SUCCESS, 0.0))
        self.success_recent = sum(self._successes) / len(self._successes)
        if len(self._successes) == self._successes.maxlen:
            self.success_best = max(self.success_best, self.success_recent)
        self.took_s.append(values.get("timing/step", 0.0))
        for phase, seconds in phases_of(line).items():
            self.phases_s[phase] += seconds
        if PHASES["checkpoint"] in values:
            self.checkpoint_took_s = values[PHASES["checkpoint"]]
        played = values.get("generate/batch_num_seq", 0.0)
        self.episodes += played
        self.answers += played * values.get("environment/turns", 0.0)
        self.tokens += played * values.get("generate/avg_assistant_tokens", 0.0)

    def _look_at_checkpoints(self) -> None:
        markers = list(self.run.checkpoints.glob("global_step_*/COMMITTED.json"))
        self.num_checkpoints = len(markers)
        newest_marker = max(markers, key=_step_of, default=None)
        if newest_marker is None:
            self.checkpoint = None
            return
        self.checkpoint_time_s = newest_marker.stat().st_mtime
        self.checkpoint = self._read_once(
            "checkpoint",
            [newest_marker],
            lambda: Committed.model_validate_json(newest_marker.read_text()),
        )

    def _look_at_records(self) -> None:
        self.stage_times_s = {}
        for kind in STAGES:
            file = self.run.records / f"{kind.stage}.json"
            with suppress(FileNotFoundError):
                self.stage_times_s[kind.stage] = file.stat().st_mtime
        gate = self.run.records / f"{GateRecord.stage}.json"
        files = [gate] if gate.is_file() else []
        self.gate = self._read_once("gate", files, lambda: newest(GateRecord, self.run.records))

    def _read_once[T](self, what: str, files: list[Path], read: Callable[[], T]) -> T:
        """Read again only what was replaced since: every writer here replaces whole files."""
        sign = [(str(file), (s := file.stat()).st_mtime_ns, s.st_size, s.st_ino) for file in files]
        if what not in self._known or self._known[what][0] != sign:
            self._known[what] = (sign, read())
        return self._known[what][1]


def phases_of(line: MetricsLine) -> dict[str, float]:
    """Seconds of each phase of a step; what no timer names is `other`."""
    phases = {phase: line.values.get(key, 0.0) for phase, key in PHASES.items()}
    rest = line.values.get("timing/step", 0.0) - sum(phases.values())
    return phases | {"other": max(0.0, rest)}


def _step_of(marker: Path) -> int:
    return int(marker.parent.name.removeprefix("global_step_"))
