"""The sweep frees what flow runs that are over have left, and nothing that is still wanted."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from tasks import attempts, host, sweep
from tasks.attempts import all_attempts, take_next
from tasks.backends.object_store import FileStore
from tasks.cluster import Holder
from tasks.context import Context
from tasks.host import hosting
from tasks.hosted import Hosted, remember
from tasks.sweep import sweep_clusters, sweep_hosting, sweep_runs
from tasks.turn import turn, turn_of_this_process
from tests.samples import make_context

OVER, ALIVE = "flow-over", "flow-alive"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    context = make_context(tmp_path)
    context.home.create()
    monkeypatch.setattr(sweep, "make_backends", lambda *_: context.backends)
    monkeypatch.setattr(sweep, "is_over", lambda flow_run_id: flow_run_id == OVER)
    return context


def clusters(context: Context) -> Any:
    return context.backends.clusters


def held_by(context: Context, flow_run_id: str) -> Path:
    """A lock as a flow leaves it that is killed."""
    path = context.home.runtime / f"cluster-{context.config.name}.lock"
    holder = Holder(flow_run_id=flow_run_id, run_id=context.run.run_id)
    path.write_text(holder.model_dump_json())
    return path


def worked_on_by(context: Context, flow_run_id: str) -> None:
    """A run as a flow leaves it that is killed in an attempt."""
    with turn(context.run):
        mine = turn_of_this_process().model_copy(update={"flow_run_id": flow_run_id})
        (context.run.folder / "turn.json").write_text(mine.model_dump_json())
    take_next(FileStore(context.run.attempts), context.run.run_id, "flow", 0)
    context.backends.tracker.open(context.run.run_id, {}, {})


def swept(stage: Any, context: Context) -> list[str]:
    with disable_run_logger():
        return stage.fn(context.home)


def test_the_cluster_of_a_flow_that_is_over_is_stopped_once(context: Context) -> None:
    clusters(context).start("smoke", context.config.cluster, None)
    held_by(context, OVER)
    assert swept(sweep_clusters, context) == ["smoke"]
    assert clusters(context).find("smoke", context.config.cluster, None) is None
    assert swept(sweep_clusters, context) == []


def test_the_cluster_of_a_flow_that_will_go_on_is_left(context: Context) -> None:
    clusters(context).start("smoke", context.config.cluster, None)
    held_by(context, ALIVE)
    assert swept(sweep_clusters, context) == []
    assert clusters(context).find("smoke", context.config.cluster, None)


def test_a_cluster_that_another_flow_has_taken_meanwhile_is_left(context: Context) -> None:
    from tasks.home import take_lock

    clusters(context).start("smoke", context.config.cluster, None)
    with held_by(context, OVER).open("a") as file:
        assert take_lock(file)
        assert swept(sweep_clusters, context) == []
    assert clusters(context).find("smoke", context.config.cluster, None)


def test_the_run_of_a_flow_that_is_over_is_closed_once(context: Context) -> None:
    worked_on_by(context, OVER)
    tracker: Any = context.backends.tracker
    assert swept(sweep_runs, context) == [context.run.run_id]
    (attempt,) = all_attempts(context.run.attempts)
    assert attempt.ended and attempt.cause == "lost cluster"
    assert tracker.closed == {context.run.run_id: "FAILED"}
    assert swept(sweep_runs, context) == []


def test_a_run_that_goes_on_or_is_worked_on_is_left(context: Context) -> None:
    worked_on_by(context, ALIVE)
    assert swept(sweep_runs, context) == []
    worked_on_by(context, OVER)
    with turn(context.run):
        mine = turn_of_this_process().model_copy(update={"flow_run_id": OVER})
        (context.run.folder / "turn.json").write_text(mine.model_dump_json())
        assert swept(sweep_runs, context) == []
    assert all(attempt.ended is None for attempt in all_attempts(context.run.attempts))


def test_what_is_half_published_goes_when_it_is_old(context: Context) -> None:
    worked_on_by(context, OVER)
    attempts.end(context.run.attempts, all_attempts(context.run.attempts)[0], 0, "ended")
    for name, age_s in (("old", 4000), ("new", 10)):
        folder = context.run.adapters / f".step_{name}"
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - age_s,) * 2)
    swept(sweep_runs, context)
    assert [path.name for path in context.run.adapters.iterdir()] == [".step_new"]


def test_what_cannot_be_freed_keeps_nothing_else_waiting(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_on_by(context, OVER)
    damaged = context.run.folder.with_name("a-damaged-run")
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    assert swept(sweep_runs, context) == [context.run.run_id]


def hosted_before(context: Context) -> None:
    remember(context.home, Hosted(run_id=context.run.run_id, step=2, adapter_digest="a" * 64))


def test_a_replacement_that_was_never_seen_through_is_undone(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: Any = context.backends.models
    monkeypatch.setattr(host, "make_backends", lambda *_: context.backends)
    asked: list[str] = []
    monkeypatch.setattr(models, "settle", lambda digest: asked.append(digest) or True)
    assert swept(sweep_hosting, context) == [] and not asked  # nothing was ever hosted
    hosted_before(context)
    with hosting(context.home):
        assert swept(sweep_hosting, context) == [] and not asked  # a flow is at it
    assert swept(sweep_hosting, context) == ["a" * 64] == asked
