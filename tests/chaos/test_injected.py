"""Faults that no kill makes: the trainer's own code is changed in a copy of the project.

The copy differs from the project by a few lines at the end of one file, so its image is another
one; the adapter it trains is the same.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tests.chaos.test_kills import Report, ends_undisturbed
from tests.chaos.trial import Facts, Trial
from tests.homes import ROOT

NOT_FINITE = """
_train = MazeTrainer.train_critic_and_policy


def _poisoned(self: MazeTrainer, data: Any) -> Any:
    flag = Path({flag!r})
    if self.global_step == 3 and flag.exists():
        flag.unlink()
        data["advantages"] = data["advantages"] * float("nan")
    return _train(self, data)


MazeTrainer.train_critic_and_policy = _poisoned
"""
CLOCK = """
import time

_now_ns = time.time_ns
time.time_ns = lambda: _now_ns() - (7_200_000_000_000 if Path({flag!r}).exists() else 0)
"""
Inject = Callable[[str], Trial]


@pytest.fixture
def inject(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Inject]:
    """Begin a trial of a copy whose experiment ends with `code`; `flag` is a file that exists."""
    home = Home(tmp_path / "home")

    def act(code: str) -> Trial:
        copy, flag = tmp_path / "copy", tmp_path / "flag"
        ignored = shutil.ignore_patterns(".git", ".ariadne", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        flag.touch()
        with (copy / "containers" / "trainer" / "experiment.py").open("a") as file:
            file.write(code.format(flag=str(flag)))
        return Trial(home, request.node.name.removeprefix("test_"), tmp_path, root=copy)

    yield act
    Supervisord(home).shutdown()


def test_nan(inject: Inject, undisturbed: Facts, report: Report) -> None:
    trial = inject(NOT_FINITE)
    trial.wait_for_step(2)
    trial.strike(lambda: None)
    ends_undisturbed(trial, undisturbed, report, "loss not a number in step 3")
    first = (trial.folder / "attempts" / "1.json").read_text()
    assert '"cause": "loss not finite"' in first and "step 3" in first


def test_clock(inject: Inject, undisturbed: Facts, report: Report) -> None:
    trial = inject(CLOCK)
    trial.wait_for_step(2)
    trial.strike((trial.log.parent / "flag").unlink)
    ends_undisturbed(trial, undisturbed, report, "the trainer's clock jumps by two hours")
