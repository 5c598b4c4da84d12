"""The watchdog: what is allowed comes from the run's own steps."""

from pathlib import Path

import pytest

from configs.jobs import MetricsLine
from tasks.run_dir import Run
from tasks.watchdog import Stalled, Watchdog
from tests.samples import commit_checkpoint, make_context


class Clock:
    """Time that passes when told."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_context(tmp_path, train__first_step_timeout_s=600).run


def step(run: Run, number: int, seconds: float) -> None:
    values = {"timing/step": seconds}
    line = MetricsLine(step=number, attempt=1, wall_time_ms=number, values=values)
    with run.metrics.open("a") as file:
        file.write(line.model_dump_json() + "\n")


def test_the_first_step_has_its_own_limit(run: Run) -> None:
    clock = Clock()
    watchdog = Watchdog(run, clock)
    clock.now_s = 599
    watchdog.check()
    clock.now_s = 601
    with pytest.raises(Stalled, match="no progress for 601 s, 600 s are allowed"):
        watchdog.check()
    assert not watchdog.has_moved


def test_a_slow_run_may_be_slow(run: Run) -> None:
    clock = Clock()
    watchdog = Watchdog(run, clock)
    step(run, 1, seconds=900)
    watchdog.check()
    clock.now_s = 4400
    watchdog.check()
    clock.now_s = 4501
    with pytest.raises(Stalled, match="4500 s are allowed"):
        watchdog.check()
    assert watchdog.has_moved


def test_a_quick_run_is_not_hurried(run: Run) -> None:
    clock = Clock()
    watchdog = Watchdog(run, clock)
    step(run, 1, seconds=0.1)
    watchdog.check()
    clock.now_s = 119
    watchdog.check()
    clock.now_s = 121
    with pytest.raises(Stalled, match="120 s are allowed"):
        watchdog.check()


def test_a_checkpoint_is_progress_too(run: Run) -> None:
    clock = Clock()
    watchdog = Watchdog(run, clock)
    step(run, 1, seconds=1)
    watchdog.check()
    clock.now_s = 100
    commit_checkpoint(run.checkpoints, 1, 1)
    watchdog.check()
    clock.now_s = 200
    watchdog.check()
