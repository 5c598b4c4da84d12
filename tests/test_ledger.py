"""What failures cost, on attempts and steps whose sums are done by hand."""

from datetime import UTC, datetime, timedelta

import pytest

from configs.jobs import MetricsLine
from tasks.attempts import Attempt
from tasks.metrics.ledger import Ledger, Trained, reckon

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(number: int, start_s: float, end_s: float | None, cause: str | None) -> Attempt:
    return Attempt(
        number=number,
        submission_id=f"a-{number}",
        flow_run="f",
        started=BEGIN + timedelta(seconds=start_s),
        start_step=0,
        ended=None if end_s is None else BEGIN + timedelta(seconds=end_s),
        end_step=None if end_s is None else 0,
        cause=cause,
    )


def reckoned(attempts: list[Attempt], *steps: tuple[int, int, float], now_s: float) -> Ledger:
    """Steps as attempt, step and the second of their end; each takes 10 s."""
    trained: dict[int, Trained] = {}
    for number, step, end_s in steps:
        line = MetricsLine(
            step=step,
            attempt=number,
            wall_time_ms=round(1000 * (BEGIN.timestamp() + end_s)),
            values={"timing/step": 10.0},
        )
        trained.setdefault(number, Trained.begin(line)).walls_ms[step] = line.wall_time_ms
    return reckon(attempts, trained, 1000 * (BEGIN.timestamp() + now_s))


def test_an_undisturbed_run_loses_nothing() -> None:
    ledger = reckoned([attempt(1, 0, 60, None)], (1, 1, 40), (1, 2, 50), now_s=100)
    assert ledger == Ledger(held_s=60, held_lost_s=0, lost_s=0, recoveries_s=())


def test_a_failure_costs_its_tail_the_pause_and_the_new_start() -> None:
    attempts = [attempt(1, 0, 57, "killed"), attempt(2, 60, 120, None)]
    ledger = reckoned(attempts, (1, 1, 40), (1, 2, 50), (2, 3, 100), now_s=200)
    assert ledger.held_s == 57 + 60
    assert ledger.held_lost_s == (57 - 50) + (90 - 60)
    assert ledger.lost_s == 90 - 50
    assert ledger.recoveries_s == (100 - 57,)


def test_steps_that_are_trained_anew_are_lost_too() -> None:
    attempts = [attempt(1, 0, 57, "killed"), attempt(2, 60, None, None)]
    steps = ((1, 1, 30), (1, 2, 40), (1, 3, 50), (2, 2, 100))
    ledger = reckoned(attempts, *steps, now_s=110)
    assert ledger.held_lost_s == (57 - 30) + (90 - 60)
    assert ledger.lost_s == 90 - 30


def test_an_attempt_without_a_step_is_lost_as_a_whole_and_no_recovery() -> None:
    attempts = [
        attempt(1, 0, 57, "killed"),
        attempt(2, 60, 80, "lost cluster"),
        attempt(3, 90, 150, None),
    ]
    ledger = reckoned(attempts, (1, 1, 50), (3, 2, 130), now_s=200)
    assert ledger.held_lost_s == (57 - 50) + 20 + (120 - 90)
    assert ledger.recoveries_s == (130 - 57,)


def test_from_the_base_again_all_that_was_before_is_lost() -> None:
    attempts = [attempt(1, 0, 50, "storage away"), attempt(2, 60, None, None)]
    ledger = reckoned(attempts, (1, 1, 40), (2, 1, 100), now_s=100)
    assert ledger.held_lost_s == 50 + (90 - 60)
    assert ledger.lost_s == 90


def test_clocks_that_differ_make_no_negative_time() -> None:
    attempts = [attempt(1, 0, 39, "killed"), attempt(2, 100, None, None)]
    ledger = reckoned(attempts, (1, 1, 40), (2, 2, 45), now_s=90)
    assert ledger.held_lost_s == 0 and ledger.held_s == 39
    assert min(ledger.lost_s, *ledger.recoveries_s) == pytest.approx(0)
