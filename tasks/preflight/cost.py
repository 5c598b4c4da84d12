"""What will the run take and cost, by the prices of the profile and the speed known so far?"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from configs.schema import PostTrainConfig
from tasks.home import Home
from tasks.preflight.findings import Finding
from tasks.run_dir import Run, read_run_file

_EVALUATION_STEPS = 3
"""Playing all mazes with base, adapter and champion takes about as long as so many steps."""
_SETUP_H = 0.5
"""From asking for machines to the first step: they come, pull the image, load the base."""


@dataclass(frozen=True)
class Estimate:
    """Time and money for what is left of a run."""

    hours: float
    usd: float | None
    """None where the machines have no price, as one's own."""
    basis: str
    """What it was reckoned from."""


def cost(config: PostTrainConfig, home: Home, done_steps: int = 0) -> Finding:
    """The estimate against preflight.max_usd."""
    found = estimate(config, home, done_steps)
    limit = config.preflight.max_usd
    money = "" if found.usd is None else f"and {found.usd:,.0f} USD "
    return Finding(
        name="time and cost",
        ok=not limit or found.usd is None or found.usd <= limit,
        detail=f"about {_duration(found.hours)} {money}({found.basis})",
        fix=f"lower train.steps, or raise preflight.max_usd = {limit:g}",
    )


def estimate(config: PostTrainConfig, home: Home, done_steps: int = 0) -> Estimate:
    """Reckon what the steps that are left take."""
    step_s, basis = _step_s(config, home)
    left = max(config.train.steps - done_steps, 0) + _EVALUATION_STEPS
    hours = left * step_s / 3600
    kuberay = config.cluster.kuberay
    if kuberay is None:
        return Estimate(hours, None, basis)
    hours += _SETUP_H
    hourly = config.cost.usd_per_hour(config.cluster.num_workers)
    if not hourly:
        return Estimate(hours, None, f"{basis}; the section cost of the profile has no prices")
    return Estimate(hours, hours * hourly, f"{basis}; {hourly:.2f} USD an hour")


def _step_s(config: PostTrainConfig, home: Home) -> tuple[float, str]:
    """Seconds of a training step, and how it is known."""
    for run in _runs_alike(config, home):
        if took := [
            line.values["timing/step"] for line in run.steps() if "timing/step" in line.values
        ]:
            return median(took), f"{median(took):.0f} s a step, measured in {run.run_id}"
    return config.preflight.step_s, f"{config.preflight.step_s:.0f} s a step, assumed"


def _runs_alike(config: PostTrainConfig, home: Home) -> Iterator[Run]:
    """Runs that trained the same way on the same machines, whatever their seed and length."""
    files = sorted(home.runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(files):
        try:
            file = read_run_file(path.parent)
        except ValueError:  # of another version: it says nothing here
            continue
        if file and _pace(file.config) == _pace(config):
            yield Run(file, path.parent)


def _pace(config: PostTrainConfig) -> tuple[object, ...]:
    """What decides how long a step takes."""
    train = config.train.model_dump(exclude={"steps", "seed", "learning_rate", "max_attempts"})
    return train, config.model, config.mazes, config.cluster


def _duration(hours: float) -> str:
    return f"{hours * 60:.0f} min" if hours < 2 else f"{hours:.1f} h"
