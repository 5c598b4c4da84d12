"""The runs of a home, drawn: success on the fixed mazes, and what training said of each step.

    python -m tests.bench.curves PICTURE.png [EVERY]

Every EVERY-th adapter of each finished run (default 2) plays the fixed mazes, greedily, as
`evaluate` has them played. Reads runs; what it plays goes to a folder of its own.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from configs.jobs import EvaluateJob, EvaluationSummary
from configs.loader import ROOT
from configs.schema import PostTrainConfig
from flows.operate import trainer_python
from tasks.home import Home
from tasks.run_dir import Run, open_run

_PANELS = {
    "success of the batch": "environment/success",
    "entropy (nats)": "policy/policy_entropy",
    "gradient norm": "policy/grad_norm",
    "gap trainer/server (nats)": "policy/rollout_train_logprobs_abs_diff_mean",
}
_PLAY_TIMEOUT_S = 600


def main() -> None:
    picture = Path(sys.argv[1])
    every = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    runs = Home.from_environment().runs
    evaluated = sorted(found.parents[1] for found in runs.glob("*/records/evaluate.json"))
    if not evaluated:
        sys.exit("no run has been evaluated yet: `make run` makes one")
    figure, axes = plt.subplots(1, 1 + len(_PANELS), figsize=(17, 3), layout="constrained")
    for run in (open_run(runs, folder.name) for folder in evaluated):
        name, lines = f"seed {run.config.train.seed}", run.steps()
        draw(axes[0], solved_by_step(run, every), name)
        for panel, key in zip(axes[1:], _PANELS.values(), strict=True):
            draw(panel, {line.step: line.values[key] for line in lines}, name)
    for panel, title in zip(axes, ("mazes solved, of the fixed ones", *_PANELS), strict=True):
        panel.set(title=title, xlabel="step")
        panel.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(picture, dpi=90)


def draw(panel: Axes, points: dict[int, float], name: str) -> None:
    panel.plot(list(points), list(points.values()), marker=".", label=name)


def solved_by_step(run: Run, every: int) -> dict[int, float]:
    """Step to mazes solved; step 0 is the base."""
    steps = [step for step in run.adapter_steps() if step % every == 0]
    solved = {step: play(run.config, run.adapter(step)) for step in steps}
    return {0: play(run.config, None), **solved}


def play(config: PostTrainConfig, adapter: Path | None) -> int:
    """How many of the fixed mazes it solves."""
    with tempfile.TemporaryDirectory() as hidden:
        output, scratch = Path(hidden) / "output", Path(hidden) / "scratch"
        job = EvaluateJob(config=config, adapter=adapter, output=output, scratch=scratch)
        command = [trainer_python(), "-m", "containers.trainer.evaluate_main"]
        environment: dict[str, Any] = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        subprocess.run(
            [*command, job.write(Path(hidden) / "job.json")],
            env=os.environ | environment, check=True, timeout=_PLAY_TIMEOUT_S,
        )  # fmt: skip
        text = (output / "summary.json").read_text()
        return EvaluationSummary.model_validate_json(text).num_solved


if __name__ == "__main__":
    main()
