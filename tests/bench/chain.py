"""The whole chain, timed and weighed, against the bare training job with the same settings."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from configs.jobs import EvaluationSummary, MetricsLine
from configs.loader import ROOT
from tasks.backends.leftovers import MARK, marked
from tasks.home import Home
from tasks.ports import any_free
from tasks.run_dir import Run, open_run
from tasks.services import down
from tests.bench.bare import ray_head, train_bare
from tests.bench.measures import Measure

_PHASES = {
    "step": "step",
    "generate": "generate",
    "fwd_logprobs_values_reward": "log-probs",
    "policy_train": "train",
    "sync_weights": "sync",
    "save_checkpoints": "checkpoint, where due",
}
_SAMPLE_S = 2.0


def main() -> None:
    short = "--short" in sys.argv
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home = Home(Path(folder) / "home")
        began_ms = time.time() * 1000
        peak = run_chain(home, "smoke" if short else "local", None if short else 6)
        (found,) = home.runs.iterdir()
        run = open_run(home.runs, found.name)
        steps = run.steps()
        say_chain(run, steps, began_ms, peak)
        say_against_bare(steps, train_weighed(run, Path(folder) / "bare"))


def run_chain(home: Home, profile: str, num_steps: int | None) -> float:
    """Everything from nothing running to a hosted adapter; the peak memory in GiB."""
    command = [sys.executable, "-m", "flows", "run", "--profile", profile]
    command += ["--steps", str(num_steps)] if num_steps else []
    free = {f"ARIADNE_{name}_PORT": str(any_free()) for name in ("PREFECT", "MLFLOW")}
    environment = {**os.environ, "ARIADNE_HOME": str(home.root), **free}
    try:
        with weigh(home.root) as peaks:
            subprocess.run(command, env=environment, cwd=ROOT, stdout=sys.stderr, check=True)
        return max(peaks) / 2**30
    finally:
        down(home)


@contextmanager
def weigh(root: Path) -> Generator[list[int]]:
    """Samples the memory of all processes of a home: shared pages are counted once."""
    samples, over = [0], threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLE_S):
            samples.append(sum(map(_pss, marked({MARK: str(root)}))))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _pss(process: psutil.Process) -> int:
    with suppress(psutil.Error, OSError):
        return process.memory_full_info().pss
    return 0


def say_chain(run: Run, steps: list[MetricsLine], began_ms: float, peak_gib: float) -> None:
    """Steps by phase, the evaluations, the way to the first step, memory."""
    for key, name in _PHASES.items():
        values = [s.values[f"timing/{key}"] for s in steps if f"timing/{key}" in s.values]
        Measure(part="chain", what=name, value=statistics.median(values), unit="s/step").say()
    for file in sorted(run.folder.glob("evals/*/summary.json")):
        seconds = EvaluationSummary.model_validate_json(file.read_text()).seconds
        Measure(part="chain", what="evaluation of 64 mazes", value=seconds, unit="s").say()
    first = steps[0]
    until_s = (first.wall_time_ms - began_ms) / 1000 - first.values["timing/step"]
    Measure(part="chain", what="from the command to the first step", value=until_s, unit="s").say()
    Measure(part="chain", what="peak memory", value=peak_gib, unit="GiB", target=10).say()


def train_weighed(run: Run, folder: Path) -> list[MetricsLine]:
    """The same training on a plain Ray head, weighed alike, with nobody watching; its steps.

    Answers are drawn with seeds of their own, so that both play the very same episodes.
    """
    folder.mkdir()
    with ray_head(folder, {MARK: str(folder)}) as environment, weigh(folder):
        return train_bare(run.config, folder / "job", environment)


def say_against_bare(chain: list[MetricsLine], bare: list[MetricsLine]) -> None:
    """From the end of the first step to the end of the last, saving included."""

    def seconds(steps: list[MetricsLine]) -> float:
        return (steps[-1].wall_time_ms - steps[0].wall_time_ms) / 1000

    ratio = seconds(chain) / seconds(bare)
    Measure(part="chain", what="chain / bare job", value=ratio, unit="ratio", target=1.05).say()
    successes = json.dumps([step.values["environment/success"] for step in bare])
    sys.stderr.write(f"batch success of the bare job: {successes}\n")


if __name__ == "__main__":
    main()
