"""The relay to trackers: every committed step once, and no outage holds the training up."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.logging import disable_run_logger

from configs.jobs import MetricsLine, TrainJob
from tasks.backends.protocols import JobStatus
from tasks.check import train_job
from tasks.context import Context
from tasks.evaluate import evaluate
from tasks.gate import judge
from tasks.holder import Turn
from tasks.records import EvaluateRecord
from tasks.track import Relay, is_away, track_results, tracked_run
from tasks.train import train
from tasks.turn import Superseded
from tests.fakes import CLUSTER, IMAGE, FakeTracker, Program
from tests.samples import make_context, plays, train_step, trains, without_waiting


@pytest.fixture(autouse=True)
def no_waiting_and_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Six steps, a checkpoint after every second."""
    return make_context(tmp_path)


@pytest.fixture
def relay(context: Context) -> Iterator[Relay]:
    with disable_run_logger():
        yield Relay(context)


def tracker_of(context: Context) -> FakeTracker:
    tracker: Any = context.backends.tracker
    return tracker


def tracked(context: Context) -> list[int]:
    """The steps the tracker was told, as often as it was told."""
    return tracker_of(context).told


def job(context: Context, attempt: int = 1) -> TrainJob:
    return train_job(context.run, attempt)


def evaluate_with(context: Context, *programs: Program) -> EvaluateRecord:
    fake: Any = context.backends.jobs(CLUSTER)
    fake.programs = list(programs)
    with disable_run_logger():
        return evaluate.fn(context, IMAGE, context.run.adapter(6))


def train_with(context: Context, *programs: Program) -> None:
    fake: Any = context.backends.jobs(CLUSTER)
    fake.programs = list(programs)
    with disable_run_logger():
        train.fn(context, IMAGE)


def test_steps_are_relayed_when_their_checkpoint_is_committed_and_once(
    context: Context, relay: Relay
) -> None:
    seen = []
    for step in range(1, 6):
        train_step(job(context), step)
        relay.poll()
        relay.poll()
        seen.append(list(tracked(context)))
    assert seen == [[], [1, 2], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4]]


def test_a_step_trained_anew_is_relayed_as_it_was_trained_in_the_end(
    context: Context, relay: Relay
) -> None:
    for attempt, steps in ((1, (1, 2, 3)), (2, (3, 4))):
        for step in steps:
            train_step(job(context, attempt), step, success=attempt / 10)
            relay.poll()
    points = tracker_of(context).points
    successes = [(point.step, point.values["environment/success"]) for point in points]
    assert successes == [(1, 0.1), (2, 0.1), (3, 0.2), (4, 0.2)]


def test_a_step_that_was_told_and_is_trained_anew_is_not_told_again(
    context: Context, relay: Relay
) -> None:
    for step in (1, 2, 3, 4):
        train_step(job(context), step)
        relay.poll()
    shutil.rmtree(context.run.checkpoints / "global_step_4")  # damaged: the trainer drops it
    with disable_run_logger():
        later = Relay(context)
    for step in (3, 4, 5, 6):
        train_step(job(context, attempt=2), step)
        later.poll()
    assert tracked(context) == [1, 2, 3, 4, 5, 6]


def test_a_flow_that_was_taken_over_tells_nothing(context: Context, relay: Relay) -> None:
    for step in (1, 2):
        train_step(job(context), step)
    other = Turn(flow_run_id="another", host="elsewhere", pid=1, started=0.0, token="other")
    (context.run.folder / "turn.json").write_text(other.model_dump_json())
    with pytest.raises(Superseded, match="taken over by flow run another"):
        relay.poll()
    assert tracked(context) == []


def test_a_point_has_the_time_and_values_that_the_trainer_wrote(
    context: Context, relay: Relay
) -> None:
    for step in (1, 2):
        train_step(job(context), step)
    relay.poll()
    (line, _), (point, _) = context.run.steps(), tracker_of(context).points
    assert point.time_ms == line.wall_time_ms
    assert point.values == {**line.values, "attempt": 1.0}


def test_training_relays_all_steps_once_over_all_attempts(context: Context) -> None:
    train_with(context, trains(to=5, then="failed"), trains(to=6))
    assert tracked(context) == [1, 2, 3, 4, 5, 6]


def test_a_tracker_that_is_away_stops_nothing_and_catches_up(context: Context) -> None:
    def loses_the_tracker_for_a_while(file: Path) -> Iterator[JobStatus]:
        for poll, status in enumerate(trains(to=6)(file)):
            tracker_of(context).away = poll in range(1, 6)
            yield status

    train_with(context, loses_the_tracker_for_a_while)
    assert context.run.committed_step() == 6
    assert tracked(context) == [1, 2, 3, 4, 5, 6]


def test_a_tracker_that_stays_away_is_told_by_the_next_flow(context: Context) -> None:
    tracker_of(context).away = True
    train_with(context, trains(to=6))
    assert context.run.committed_step() == 6 and tracked(context) == []
    tracker_of(context).away = False
    train_with(context)
    assert tracked(context) == [1, 2, 3, 4, 5, 6]


def test_what_the_tracker_missed_at_the_end_comes_with_the_results(context: Context) -> None:
    tracker_of(context).away = True
    train_with(context, trains(to=6))
    scores = evaluate_with(context, plays(28), plays(62))
    with disable_run_logger():
        decision = judge.fn(context, scores)
    tracker_of(context).away = False
    for _ in range(2):
        track_results.fn(context, scores, decision)
    points = tracker_of(context).points
    assert [point.step for point in points] == [1, 2, 3, 4, 5, 6, 6]
    assert points[-1].values == {
        "test/solved": 62,
        "test/solved_base": 28,
        "test/success": 62 / 64,
        "held_out/7x7": 0.5,
        "held_out/9x9": 0.5,
    }


def test_a_tracker_that_was_away_when_the_flow_began_hears_of_the_run_later(
    context: Context,
) -> None:
    tracker = tracker_of(context)
    tracker.opened.clear()
    tracker.away = True

    def comes_back(file: Path) -> Iterator[JobStatus]:
        for poll, status in enumerate(trains(to=6)(file)):
            tracker.away = poll < 3
            yield status

    with disable_run_logger(), tracked_run(context):
        train_with(context, comes_back)
    assert tracked(context) == [1, 2, 3, 4, 5, 6]


def test_a_failure_is_not_hidden_by_a_tracker_that_is_away(context: Context) -> None:
    with (
        disable_run_logger(),
        pytest.raises(ValueError, match="the cause"),
        tracked_run(context),
    ):
        tracker_of(context).away = True
        raise ValueError("the cause")


@pytest.mark.parametrize(
    ("error", "waits"), [(ConnectionError("away"), True), (LookupError("no run"), False)]
)
def test_only_for_a_tracker_that_is_away_is_waited(error: Exception, waits: bool) -> None:
    state = State(type=StateType.FAILED, data=error)
    assert is_away(None, None, state) is waits


@pytest.mark.parametrize(("gap", "num_warnings"), [(0.0002, 0), (0.02, 1)])
def test_a_server_that_plays_another_policy_is_pointed_out(
    context: Context, gap: float, num_warnings: int
) -> None:
    with disable_run_logger():
        relay = Relay(context)
    heard: list[str] = []
    logger: Any = SimpleNamespace(info=lambda *_: None, warning=heard.append)
    relay._log = logger
    values = {"policy/rollout_train_logprobs_abs_diff_mean": gap}
    line = MetricsLine(step=1, attempt=1, wall_time_ms=1, values=values)
    context.run.metrics.write_text(line.model_dump_json() + "\n")
    relay.poll()
    assert len(heard) == num_warnings
    assert all("step 1" in warning and "0.020" in warning for warning in heard)
