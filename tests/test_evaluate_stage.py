"""The evaluation stage: all 64 mazes or an error, and nothing is played twice."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from configs.jobs import EvaluateJob
from tasks import plays as stage
from tasks.context import Context
from tasks.evaluate import evaluate, find_evaluation
from tasks.gate import require_decision
from tasks.records import EvaluateRecord
from tests.fakes import CLUSTER, IMAGE, FakeJobs, Program
from tests.samples import make_context, plays, reason, without_waiting, write_adapter


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


@pytest.fixture
def adapter(context: Context) -> Path:
    return write_adapter(context, 6)


def jobs_of(context: Context) -> FakeJobs:
    return context.backends.jobs(CLUSTER)


def evaluate_with(context: Context, adapter: Path, *programs: Program) -> EvaluateRecord:
    """Evaluate; each new job runs the next program, and all of them are needed."""
    jobs_of(context).programs = list(programs)
    with disable_run_logger():
        record = evaluate.fn(context, IMAGE, adapter)
    assert jobs_of(context).programs == []
    return record


def test_base_and_adapter_are_played_and_found_again(context: Context, adapter: Path) -> None:
    record = evaluate_with(context, adapter, plays(28), plays(62))
    assert (record.num_solved_base, record.num_solved, record.num_mazes) == (28, 62, 64)
    assert record.step == 6
    assert record.mazes_digest == context.run.file.mazes_digest
    assert find_evaluation(context, adapter) == record


def test_the_jobs_are_told_which_model_to_play(context: Context, adapter: Path) -> None:
    evaluate_with(context, adapter, plays(28), plays(62))
    jobs = [
        EvaluateJob.read(context.run.scratch(name) / "job.json")
        for name in jobs_of(context).submitted
    ]
    assert [job.adapter for job in jobs] == [None, adapter]


def test_an_evaluation_that_is_there_is_read_and_not_played_again(
    context: Context, adapter: Path
) -> None:
    assert evaluate_with(context, adapter, plays(28), plays(62)) == evaluate_with(context, adapter)


def test_the_base_is_played_once_for_all_adapters(context: Context, adapter: Path) -> None:
    evaluate_with(context, adapter, plays(28), plays(62))
    record = evaluate_with(context, write_adapter(context, 4), plays(50))
    assert (record.num_solved_base, record.num_solved) == (28, 50)


def test_63_of_64_outcomes_are_an_error_and_no_record(context: Context, adapter: Path) -> None:
    line = reason(lambda: evaluate_with(context, adapter, plays(28), plays(60, num_played=63)))
    assert line.startswith(f"the evaluation left no complete results in {context.run.folder}/evals")
    assert find_evaluation(context, adapter) is None
    assert reason(lambda: require_decision(context.run, adapter)).endswith(
        "run the deployment evaluate/evaluate for it first"
    )


def test_after_63_of_64_outcomes_all_are_played_again(context: Context, adapter: Path) -> None:
    reason(lambda: evaluate_with(context, adapter, plays(28), plays(60, num_played=63)))
    assert evaluate_with(context, adapter, plays(61)).num_solved == 61


def test_an_evaluation_that_failed_by_chance_is_tried_again(
    context: Context, adapter: Path
) -> None:
    failed = plays(0, then="failed")
    record = evaluate_with(context, adapter, failed, plays(28), failed, failed, plays(62))
    assert (record.num_solved_base, record.num_solved) == (28, 62)


def test_an_evaluation_that_lost_its_node_gets_a_new_cluster(
    context: Context, adapter: Path
) -> None:
    clusters: Any = context.backends.clusters
    jobs_of(context).output = "ray.exceptions.NodeDiedError: the node died\n"
    evaluate_with(context, adapter, plays(28), plays(0, then="failed"), plays(62))
    assert clusters.started == 2


@pytest.mark.parametrize(
    ("status", "tries", "cause", "advice"),
    [
        ("failed", 3, "unknown failure", "read the job's log and mend the cause"),
        ("stopped", 1, "cancelled by a person", "start the same flow again to go on"),
    ],
)
def test_an_evaluation_that_fails_for_good_names_its_reason_and_the_next_move(
    context: Context, adapter: Path, status: Any, tries: int, cause: str, advice: str
) -> None:
    programs = [plays(0, then=status)] * tries
    line = reason(lambda: evaluate_with(context, adapter, plays(28), *programs))
    scratch = context.run.scratch(jobs_of(context).submitted[-1])
    said = "ValueError: the maze has no door"
    assert line == f"the evaluation {status}: {cause}: {said}. Next: {advice} ({scratch})"
    assert (scratch / "job.log").read_text() == jobs_of(context).output
    assert find_evaluation(context, adapter) is None


def test_a_failed_evaluation_is_played_again_by_the_next_flow(
    context: Context, adapter: Path
) -> None:
    failed = [plays(0, then="failed")] * 3
    reason(lambda: evaluate_with(context, adapter, plays(28), *failed))
    assert evaluate_with(context, adapter, plays(62)).num_solved == 62


def test_an_evaluation_under_way_is_adopted(
    context: Context, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow that started it dies while it waits."""
    with monkeypatch.context() as dying:
        dying.setattr(stage, "follow", interrupt)
        with pytest.raises(KeyboardInterrupt):
            evaluate_with(context, adapter, plays(28))
    assert evaluate_with(context, adapter, plays(62)).num_solved_base == 28
    assert len(jobs_of(context).submitted) == 2


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_results_that_were_deleted_are_played_again(context: Context, adapter: Path) -> None:
    record = evaluate_with(context, adapter, plays(28), plays(62))
    shutil.rmtree(record.results)
    assert find_evaluation(context, adapter) is None
    assert evaluate_with(context, adapter, plays(62)) == record


def test_an_evaluation_without_the_base_is_not_complete(context: Context, adapter: Path) -> None:
    record = evaluate_with(context, adapter, plays(28), plays(62))
    (record.base_results / "summary.json").write_bytes(b"\xff")
    assert find_evaluation(context, adapter) is None
    assert evaluate_with(context, adapter, plays(28)) == record


def test_other_evaluation_settings_play_everything_again(tmp_path: Path, context: Context) -> None:
    adapter = write_adapter(context, 6)
    evaluate_with(context, adapter, plays(28), plays(62))
    other = make_context(tmp_path, evaluate__max_action_tokens=9)
    assert other.run.folder == context.run.folder
    assert find_evaluation(other, adapter) is None
    assert evaluate_with(other, adapter, plays(29), plays(63)).num_solved == 63


def test_an_adapter_changed_after_its_evaluation_is_not_the_evaluated_one(
    context: Context, adapter: Path
) -> None:
    evaluate_with(context, adapter, plays(28), plays(62))
    (adapter / "adapter_model.safetensors").write_bytes(b"something else")
    line = reason(lambda: require_decision(context.run, adapter))
    assert line.startswith(f"adapter {adapter} is damaged, its files are not those of its manifest")
    assert reason(lambda: evaluate_with(context, adapter)) == line
