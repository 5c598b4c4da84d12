"""What a training step leaves behind, in an order that survives a crash at any point.

For each step: its line of metrics, flushed; then, where a checkpoint was written, the commit of
that checkpoint and its adapter. So a committed checkpoint's step always has its metrics, and a
run that goes on from it misses and doubles nothing. An attempt with a successor writes nothing.
"""

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from skyrl.train.utils.callbacks import CallbackInput, TrainingCallback, TrainingControl

from configs.jobs import MetricsLine, TrainJob
from containers.trainer.adapters import publish
from containers.trainer.checkpoints import commit, committed_steps, prune
from containers.trainer.fence import Fence
from containers.trainer.notice import Notice

_SUCCESS = "environment/success"
_MUST_BE_FINITE = ("policy/final_loss", "policy/policy_loss", "policy/grad_norm")


class Recorder(TrainingCallback):
    """Appends to metrics.jsonl, commits checkpoints and publishes adapters."""

    def __init__(self, job: TrainJob, notice: Notice) -> None:
        self._job = job
        self._notice = notice
        self._fence = Fence(job.attempts, job.attempt)
        self._unfinished: Path | None = None
        self._success = read_success(job.metrics)

    def on_step_end(
        self, trainer: Any, callback_input: CallbackInput, control: TrainingControl
    ) -> None:
        control.should_save |= self._notice.is_given

    def on_save(
        self, trainer: Any, callback_input: CallbackInput, control: TrainingControl
    ) -> None:
        assert callback_input.ckpt_path
        self._unfinished = Path(callback_input.ckpt_path)

    def on_log(self, trainer: Any, callback_input: CallbackInput, control: TrainingControl) -> None:
        logs = callback_input.logs or {}
        check_finite(callback_input.global_step, logs)
        self._fence.check()
        self._append(callback_input.global_step, logs)
        if self._finish(callback_input.global_step):
            self._notice.leave(callback_input.global_step)

    def on_train_end(
        self, trainer: Any, callback_input: CallbackInput, control: TrainingControl
    ) -> None:
        """SkyRL saves once more after a last step that was not due for a checkpoint."""
        self._finish(callback_input.global_step)

    def _append(self, step: int, logs: dict[str, Any]) -> None:
        values = {
            key: float(value)
            for key, value in logs.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        line = MetricsLine(
            step=step,
            attempt=self._job.attempt,
            wall_time_ms=time.time_ns() // 1_000_000,
            values=values,
        )
        append_line(self._job.metrics, line.model_dump_json())
        self._success[step] = values.get(_SUCCESS, 0.0)

    def _finish(self, step: int) -> bool:
        """Commit and publish what was saved, if it was; whether it was."""
        if self._unfinished is None:
            return False
        self._fence.check()
        commit(self._unfinished, step, self._job.attempt, self._job.config.train.num_processes)
        publish(self._unfinished, step, self._job)
        self._unfinished = None
        committed = committed_steps(self._job.checkpoints)
        best = max(committed, key=lambda step: (self._success.get(step, 0.0), step))
        prune(self._job.checkpoints, self._job.config.train.keep_checkpoints, {best})
        return True


def check_finite(step: int, logs: dict[str, Any]) -> None:
    """Refuse a step whose update was not finite: it is not history, and nothing is saved of it.

    Raises:
        FloatingPointError: names the step and the value.
    """
    for key in _MUST_BE_FINITE:
        if not math.isfinite(logs.get(key, 0.0)):
            raise FloatingPointError(f"step {step}: {key} is not finite")


def read_success(metrics: Path) -> dict[int, float]:
    """Share of solved episodes by step, of the attempts before; a torn line tells nothing."""
    success: dict[int, float] = {}
    for text in metrics.read_text().splitlines() if metrics.is_file() else []:
        with suppress(ValueError):
            line = MetricsLine.model_validate_json(text)
            success[line.step] = line.values.get(_SUCCESS, 0.0)
    return success


def append_line(path: Path, line: str) -> None:
    """Append one line and have it on the disk; a torn last line of a crash is closed first."""
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
