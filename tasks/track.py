"""Trackers are views: what the trainer wrote to files is relayed to MLflow and to the log.

Only steps up to the newest committed checkpoint are relayed: a step that may still be trained
again is not history yet. The tracker itself says up to where it was told, so that nothing is told
twice, not even when training falls back behind a checkpoint that was damaged later. A tracker
that is away never stops training; the relay catches up.
"""

import statistics
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import State

from configs.jobs import MetricsLine
from tasks.backends.protocols import ATTEMPT, Point
from tasks.context import Context
from tasks.records import EvaluateRecord, GateRecord
from tasks.turn import Superseded, check_turn, turn

SUCCESS = "environment/success"
GAP = "policy/rollout_train_logprobs_abs_diff_mean"
WIDEST_GAP_NATS = 0.01
"""Beyond this the server plays another policy than the one that is trained."""
AWAY_RETRIES, AWAY_RETRY_S = 60, 60
"""What must be told in the end is tried for an hour, then the flow fails."""
_RECENT_STEPS = 10


class Relay:
    """Carries new training steps to the log and the tracker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._log = get_run_logger()
        self._steps = context.run.follow_steps()
        self._recent: deque[MetricsLine] = deque(maxlen=_RECENT_STEPS)
        self._untracked: dict[int, MetricsLine] = {}
        self._told: int | None = None
        self._shown = 0
        self._take()  # what an earlier flow has shown already

    def poll(self) -> None:
        """Look for new steps and pass them on."""
        before = self._shown
        for line in self._take():
            if line.step > before:
                self._log.info(self._describe(line))
                if line.values.get(GAP, 0.0) > WIDEST_GAP_NATS:
                    self._log.warning(_describe_gap(line))
        self._track(self._context.run.committed_step())

    def _take(self) -> list[MetricsLine]:
        """New lines, remembered for the tracker and for the guess of what is left."""
        lines = list(self._steps.read())
        self._recent.extend(lines)
        self._untracked |= {line.step: line for line in lines}
        self._shown = max([self._shown, *(line.step for line in lines)])
        return lines

    def _describe(self, line: MetricsLine) -> str:
        total = self._context.config.train.steps
        seconds = statistics.median(each.values.get("timing/step", 0.0) for each in self._recent)
        left = seconds * (total - line.step) / 60
        success = line.values.get(SUCCESS, 0.0)
        return (
            f"train: step {line.step} of {total}, batch success {success:.0%}, "
            f"{seconds:.0f} s a step, about {left:.0f} min left"
        )

    def _track(self, committed: int) -> None:
        lines = [self._untracked[step] for step in sorted(self._untracked) if step <= committed]
        check_turn(self._context.run)
        if not lines:
            return
        try:
            self._told = tell(self._context, lines, self._told)
            for line in lines:
                del self._untracked[line.step]
        except Exception as error:  # the tracker is a view; the file keeps what it missed
            self._log.warning("the tracker does not take metrics for now: %s", error)


def tell(context: Context, lines: list[MetricsLine], told: int | None = None) -> int:
    """Tell the tracker the steps it has not heard of; the newest it knows then.

    `told` is the newest it knew, if somebody has asked already; else the run is opened first, for
    the tracker may have been away when the flow began.
    """
    tracker, run_id = context.backends.tracker, context.run.run_id
    if told is None:
        open_run(context)
    known = tracker.last_step(run_id) if told is None else told
    new = [line for line in lines if line.step > known]
    tracker.log(run_id, _points(new))
    return max([known, *(line.step for line in new)])


def is_away(_task: Any, _run: Any, state: State[Any]) -> bool:
    """The tracker could not be reached: it may come back, any other error stays what it is."""
    return isinstance(state.result(raise_on_failure=False), ConnectionError)


def open_run(context: Context) -> str:
    """Find or make the tracker's run of this run; returns its address."""
    file = context.run.file
    tags = {
        "ariadne.flow_run": flow_run.ui_url or "",
        "ariadne.image_digest": file.image_digest,
        "ariadne.base_digest": file.base_digest,
        "ariadne.mazes_digest": file.mazes_digest,
    }
    parameters = dict(_flatten("", context.config.model_dump(mode="json")))
    return context.backends.tracker.open(file.run_id, parameters, tags)


@contextmanager
def tracked_run(context: Context) -> Generator[str]:
    """Our turn on the run, and its MLflow run: running while the work is, failed when it failed.

    Yields its address, or nothing while the tracker is away.
    """
    with turn(context.run):
        address = ""
        with _unless_away():
            address = open_run(context)
            get_run_logger().info("track: %s", address)
        try:
            yield address
        except Superseded:
            raise
        except Exception:
            with _unless_away():  # the sweep closes what stays open
                context.backends.tracker.close(context.run.run_id, "FAILED")
            raise


@contextmanager
def _unless_away() -> Generator[None]:
    try:
        yield
    except ConnectionError as error:
        get_run_logger().warning("track: %s; it is told when it is back", error)


@task(
    task_run_name="track results",
    cache_policy=NO_CACHE,
    retries=AWAY_RETRIES,
    retry_delay_seconds=AWAY_RETRY_S,
    retry_condition_fn=is_away,
)
def track_results(context: Context, scores: EvaluateRecord, decision: GateRecord) -> str:
    """Log the evaluation and end the run; returns its address."""
    tracker, run = context.backends.tracker, context.run
    check_turn(run)
    steps = run.steps()
    address = open_run(context)
    tell(context, steps)  # it may have been away at the end
    values = {
        "test/solved": float(scores.num_solved),
        "test/solved_base": float(scores.num_solved_base),
        "test/success": scores.num_solved / scores.num_mazes,
    }
    values |= {
        f"held_out/{each.name}": each.num_solved / each.num_mazes
        for each in decision.held_out
        if each.num_mazes
    }
    end = Point(step=scores.step, time_ms=steps[-1].wall_time_ms, values=values)
    tracker.log(run.run_id, [end])
    for name in ("episodes.jsonl", "summary.json"):
        tracker.log_file(run.run_id, scores.results / name, "evaluation")
    tracker.close(run.run_id, "FINISHED")
    return address


def _describe_gap(line: MetricsLine) -> str:
    return (
        f"train: step {line.step}: the log-probabilities of trainer and server differ by "
        f"{line.values[GAP]:.3f} on average, {WIDEST_GAP_NATS} are usual at most: what is learnt "
        "may not be what is played; look at number formats, adapter layers and the vLLM version"
    )


def _points(lines: list[MetricsLine]) -> list[Point]:
    return [
        Point(
            step=line.step,
            time_ms=line.wall_time_ms,
            values={**line.values, ATTEMPT: float(line.attempt)},
        )
        for line in lines
    ]


def _flatten(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _flatten(f"{prefix}{key}.", item)]
    return [(prefix.rstrip("."), str(value))]
