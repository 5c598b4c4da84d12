"""The choices of the profile `local`, each made otherwise, trained for a few steps.

The learning rate stays where it starts in all of them, since so few steps would end a falling one.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from configs.jobs import MetricsLine
from configs.loader import load_config
from tests.bench.bare import ray_head, train_bare
from tests.bench.curves import play
from tests.bench.measures import Measure

_OTHERWISE: dict[str, dict[str, Any]] = {
    "as it is": {},
    "learning_rate 2e-4": {"train.learning_rate": 2e-4},
    "groups of 4, 32 mazes a step": {
        "train.samples_per_maze": 4,
        "train.mazes_per_step": 32,
        "train.mini_batch_mazes": 8,
    },
    "groups of 16, 8 mazes a step": {
        "train.samples_per_maze": 16,
        "train.mazes_per_step": 8,
        "train.mini_batch_mazes": 2,
    },
    "advantages not divided by their deviation": {"train.normalise_by_std": False},
    "KL to the base, 0.01": {"train.kl_coefficient": 0.01},
    "temperature 0.7": {"train.temperature": 0.7},
}
_CONSTANT = {"train.learning_rate_schedule": "constant"}
_SAID = {
    "environment/success": ("success of the batch", "share"),
    "policy/policy_entropy": ("entropy", "nats"),
    "policy/rollout_train_logprobs_abs_diff_mean": ("gap to the server", "nats"),
    "timing/step": ("seconds", "s"),
}


def main() -> None:
    profile, steps = ("smoke", 1) if "--short" in sys.argv else ("local", 3)
    with tempfile.TemporaryDirectory(prefix="bench-") as path:
        folder = Path(path)
        with ray_head(folder, {}) as environment:
            for index, (name, changes) in enumerate(_OTHERWISE.items()):
                own = {"train.steps": steps, "train.checkpoint_every_steps": steps}
                config = load_config(profile, _CONSTANT | own | changes)
                job = folder / str(index)
                say(name, train_bare(config, job, environment))
                solved = play(config, job / "adapters" / f"step_{steps}")
                what = f"{name}: mazes solved after step {steps}"
                Measure(part="choices", what=what, value=solved, unit="of 64").say()


def say(name: str, steps: list[MetricsLine]) -> None:
    """The last step's numbers; those of all steps go to the terminal."""
    for key, (meaning, unit) in _SAID.items():
        values = [step.values[key] for step in steps]
        sys.stderr.write(f"{name}: {meaning} {', '.join(f'{value:.4g}' for value in values)}\n")
        what = f"{name}: {meaning} in step {len(steps)}"
        Measure(part="choices", what=what, value=values[-1], unit=unit).say()


if __name__ == "__main__":
    main()
