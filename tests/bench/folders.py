"""Run folders as they grow: many checkpoints, and metrics of a million steps."""

import logging
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from configs.jobs import MetricsLine
from configs.loader import load_config
from tasks.run_dir import Run, create_run
from tasks.steps import Steps
from tests.bench.clocks import best_s
from tests.bench.measures import Measure
from tests.samples import commit_checkpoint


def main() -> None:
    logging.disable()
    short = "--short" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        measure_checkpoints(Path(folder), (10, 100) if short else (10, 100, 1000, 10_000))
    with tempfile.TemporaryDirectory() as folder:
        measure_metrics(Path(folder), (100, 1000) if short else (10_000, 100_000, 1_000_000))


def new_run(folder: Path) -> Run:
    return create_run(folder, load_config("local"), "1" * 64)


def measure_checkpoints(folder: Path, counts: tuple[int, ...]) -> None:
    """The question of every poll: which step is committed?"""
    run, costs, made = new_run(folder), [], 0
    for count in counts:
        for step in range(made + 1, count + 1):
            commit_checkpoint(run.checkpoints, step, 1)
        made = count
        costs.append(best_s(run.committed_step) / count)
        name = f"newest of {count} checkpoints"
        _say(name, costs[-1] * count * 1000, "ms")
    _say("growth of the cost of a checkpoint", costs[-1] / costs[0], "ratio", 1.5)


def measure_metrics(folder: Path, counts: tuple[int, ...]) -> None:
    """Reading all steps once, and then what one more step costs."""
    run, whole, more, made = new_run(folder), [], [], 0
    for count in counts:
        _append(run, range(made + 1, count + 1))
        steps = run.follow_steps()
        whole.append(best_s(partial(_drain, steps), rounds=1) / count)
        _append(run, range(count + 1, count + 2))
        more.append(best_s(partial(_drain, steps), rounds=1))
        made = count + 1
        _say(f"read {count} steps", whole[-1] * count, "s")
        _say(f"read one more of {count}", more[-1] * 1000, "ms")
    _say("growth of the cost of a step", whole[-1] / whole[0], "ratio", 1.5)
    _say("growth of the cost of one more step", more[-1] / more[0], "ratio", 5)


def _drain(steps: Steps) -> None:
    for _ in steps.read():
        pass


def _append(run: Run, steps: range) -> None:
    values = {"timing/step": 1.0, "environment/success": 0.5}
    with run.metrics.open("a") as file:
        for step in steps:
            line = MetricsLine(step=step, attempt=1, wall_time_ms=step, values=values)
            file.write(line.model_dump_json() + "\n")


def _say(what: str, value: float, unit: str, target: float | None = None) -> None:
    given: dict[str, Any] = {"part": "folders", "what": what, "value": value, "unit": unit}
    Measure(**given, target=target).say()


if __name__ == "__main__":
    main()
