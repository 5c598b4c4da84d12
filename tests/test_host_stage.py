"""The hosting stage: what was measured is served, once, and what served before is remembered."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from configs.jobs import SolveJob
from tasks import records
from tasks.context import Context
from tasks.evaluate import evaluate
from tasks.host import Hosted, history, host_adapter, previous, solve_job_file
from tasks.records import EvaluateRecord, HostRecord
from tests.fakes import CLUSTER, IMAGE, FakeModels
from tests.samples import make_context, plays, reason, without_waiting, write_adapter


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    without_waiting(monkeypatch)
    return make_context(tmp_path, host__port=8100)


def models_of(context: Context) -> FakeModels:
    models: Any = context.backends.models
    return models


def scores_of(context: Context, step: int) -> EvaluateRecord:
    """The adapter of a step, evaluated."""
    adapter = write_adapter(context, step)
    jobs: Any = context.backends.jobs(CLUSTER)
    jobs.programs = [plays(50)] if jobs.submitted else [plays(28), plays(50)]
    with disable_run_logger():
        return evaluate.fn(context, IMAGE, adapter)


def host(context: Context, scores: EvaluateRecord) -> HostRecord:
    with disable_run_logger():
        return host_adapter.fn(context, IMAGE, scores)


def steps_hosted(context: Context) -> list[int]:
    return [hosted.step for hosted in history(context.home)]


def test_an_evaluated_adapter_is_served_under_its_name(context: Context) -> None:
    scores = scores_of(context, 6)
    record = host(context, scores)
    assert models_of(context).started == [scores.adapter_digest]
    assert record.endpoint.models == {
        "base": context.run.file.base_digest,
        "maze-solver": scores.adapter_digest,
    }
    assert records.find(HostRecord, record.inputs, context.run.records) == record


def test_whoever_solves_a_maze_finds_the_endpoint(context: Context) -> None:
    record = host(context, scores_of(context, 6))
    job = SolveJob.read(solve_job_file(context.home))
    assert (job.url, job.model) == (record.endpoint.url, "maze-solver")


def test_an_adapter_already_served_starts_nothing_and_is_remembered_once(
    context: Context,
) -> None:
    scores = scores_of(context, 6)
    assert host(context, scores) == host(context, scores)
    assert len(models_of(context).started) == 1
    assert steps_hosted(context) == [6]


def test_a_server_that_is_gone_is_started_again(context: Context) -> None:
    scores = scores_of(context, 6)
    host(context, scores)
    models_of(context).stop()
    host(context, scores)
    assert models_of(context).started == [scores.adapter_digest] * 2
    assert steps_hosted(context) == [6]


def test_a_server_that_does_not_start_leaves_no_record_and_no_history(context: Context) -> None:
    scores = scores_of(context, 6)
    shutil.rmtree(scores.adapter)
    assert "does not serve" in reason(lambda: host(context, scores))
    assert not (context.run.records / "host.json").exists()
    assert history(context.home) == [] and not solve_job_file(context.home).exists()


def test_history_tells_what_served_in_order(context: Context) -> None:
    first, second = scores_of(context, 2), scores_of(context, 4)
    for scores in (first, second, second, first):
        host(context, scores)
    assert steps_hosted(context) == [2, 4, 2]
    assert history(context.home)[0] == Hosted(
        run_id=context.run.run_id, step=2, adapter_digest=first.adapter_digest
    )


def test_a_rollback_goes_to_the_adapter_before(context: Context) -> None:
    scores = {step: scores_of(context, step) for step in (2, 4, 6)}
    for step in (2, 4, 6):
        host(context, scores[step])
    assert previous(context.home).step == 4


def test_a_rollback_is_undone_by_another(context: Context) -> None:
    scores = {step: scores_of(context, step) for step in (2, 4)}
    host(context, scores[2])
    host(context, scores[4])
    for expected in (2, 4, 2):
        back = previous(context.home)
        host(context, scores[back.step])
        assert back.step == expected


def test_a_rollback_passes_over_the_same_adapter_of_another_step(context: Context) -> None:
    scores = scores_of(context, 2)
    host(context, scores)
    host(context, scores_of(context, 4))
    again = scores_of(context, 4).model_copy(update={"step": 5})
    host(context, again)
    assert previous(context.home).step == 2


def test_a_rollback_with_nothing_before_is_refused(context: Context) -> None:
    line = "nothing to roll back to: no other adapter was hosted before"
    assert reason(lambda: previous(context.home)) == line
    host(context, scores_of(context, 6))
    assert reason(lambda: previous(context.home)) == line


def test_what_served_before_stays_at_hand(context: Context) -> None:
    first, second = scores_of(context, 2), scores_of(context, 4)
    for scores in (first, second, first):
        host(context, scores)
    at_hand = [
        wish.previous.digest if wish.previous else None for wish in models_of(context).wishes
    ]
    assert at_hand == [None, first.adapter_digest, second.adapter_digest]


def test_what_served_before_and_was_deleted_is_not_at_hand(context: Context) -> None:
    host(context, scores_of(context, 2))
    shutil.rmtree(context.run.adapter(2))
    host(context, scores_of(context, 4))
    assert models_of(context).wishes[-1].previous is None
