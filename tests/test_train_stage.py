"""The training stage: attempts go on from what is committed, and nothing is done twice."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from tasks import attempts, jobs
from tasks.attempts import Attempt
from tasks.backends.object_store import FileStore
from tasks.backends.protocols import JobStatus
from tasks.check import train_job
from tasks.context import Context
from tasks.records import TrainRecord
from tasks.train import find_training, train
from tests.fakes import CLUSTER, IMAGE, FakeJobs, Program
from tests.samples import make_context, reason, trains, without_waiting


@pytest.fixture(autouse=True)
def no_waiting_and_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Six steps, a checkpoint after every second."""
    return make_context(tmp_path, train__max_attempts=3)


def jobs_of(context: Context) -> FakeJobs:
    return context.backends.jobs(CLUSTER)


def train_with(context: Context, *programs: Program) -> TrainRecord:
    """Train; each new job runs the next program."""
    jobs_of(context).programs = list(programs)
    with disable_run_logger():
        return train.fn(context, IMAGE)


def tried(context: Context) -> list[tuple[int, int, int | None]]:
    """Number, first and last committed step of each attempt."""
    known = attempts.all_attempts(context.run.attempts)
    return [(each.number, each.start_step, each.end_step) for each in known]


def start_elsewhere(context: Context, program: Program) -> Attempt:
    """An attempt whose flow died: its job runs on."""
    run = context.run
    attempt = attempts.take_next(
        FileStore(run.attempts), run.run_id, "dead-flow", run.committed_step()
    )
    job = jobs_of(context)
    job.programs = [program]
    file = train_job(run, 1).write(run.scratch("attempt-1") / "job.json")
    command = jobs.program(IMAGE, "containers.trainer.train_main", file)
    job.submit_or_adopt(attempt.submission_id, command, jobs.job_environment(IMAGE))
    return attempt


def test_one_attempt_trains_to_the_last_step(context: Context) -> None:
    record = train_with(context, trains(to=6))
    assert tried(context) == [(1, 0, 6)]
    assert (record.step, record.attempts, record.adapter.name) == (6, 1, "step_6")
    assert find_training(context.run) == record


def test_a_running_attempt_is_adopted_and_no_second_is_submitted(context: Context) -> None:
    attempt = start_elsewhere(context, trains(to=6))
    train_with(context)
    assert jobs_of(context).submitted == [attempt.submission_id]
    assert tried(context) == [(1, 0, 6)]


def test_a_training_that_ended_while_nobody_looked_is_found(context: Context) -> None:
    attempt = start_elsewhere(context, trains(to=6))
    while jobs_of(context).status(attempt.submission_id) != "succeeded":
        pass
    record = train_with(context)
    assert record.attempts == 1 and record.step == 6


def test_a_failed_attempt_is_followed_by_one_from_the_newest_checkpoint(context: Context) -> None:
    record = train_with(context, trains(to=5, then="failed"), trains(to=6))
    assert tried(context) == [(1, 0, 4), (2, 4, 6)]
    assert [line.attempt for line in context.run.steps()] == [1, 1, 1, 1, 2, 2]
    assert record.attempts == 2
    first = attempts.all_attempts(context.run.attempts)[0]
    assert first.reason == "unknown failure: ValueError: the maze has no door"


def test_it_gives_up_after_attempts_in_a_row_without_a_checkpoint(context: Context) -> None:
    failing = trains(to=1, then="failed")
    line = reason(lambda: train_with(context, failing, failing, failing))
    assert line == (
        "3 attempts in a row brought no checkpoint: unknown failure: ValueError: the maze has no "
        f"door. Next: read the job's log and mend the cause ({context.run.folder}/scratch), then "
        "start the same flow again: it goes on from step 0"
    )
    assert tried(context) == [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
    logs = sorted(context.run.folder.glob("scratch/*/job.log"))
    assert [log.read_text() for log in logs] == [jobs_of(context).output] * 3


def test_a_new_checkpoint_in_between_starts_the_count_anew(context: Context) -> None:
    failing = trains(to=1, then="failed")
    programs = (failing, failing, trains(to=2, then="failed"), failing, failing, trains(to=6))
    assert train_with(context, *programs).attempts == 6


def test_starting_again_after_giving_up_tries_again(context: Context) -> None:
    failing = trains(to=0, then="failed")
    reason(lambda: train_with(context, failing, failing, failing))
    assert train_with(context, trains(to=6)).attempts == 4


def test_a_lost_job_ends_its_attempt_and_the_next_goes_on(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_LOST_AFTER_S", 0)

    def vanishes(file: Path) -> Iterator[JobStatus]:
        yield from trains(to=3, then="unknown")(file)

    train_with(context, vanishes, trains(to=6))
    assert tried(context) == [(1, 0, 2), (2, 2, 6)]
    first = attempts.all_attempts(context.run.attempts)[0]
    assert first.reason is not None and first.reason.startswith("lost cluster: ")


def test_a_cluster_that_is_silent_for_a_moment_has_not_lost_its_job(context: Context) -> None:
    def stutters(file: Path) -> Iterator[JobStatus]:
        for status in trains(to=6)(file):
            yield "unknown"
            yield status

    train_with(context, stutters)
    assert tried(context) == [(1, 0, 6)]


def test_a_job_that_says_it_succeeded_short_of_the_last_step_is_not_believed_forever(
    context: Context,
) -> None:
    idle = trains(to=0)
    line = reason(lambda: train_with(context, idle, idle, idle))
    assert line.startswith(
        "3 attempts in a row brought no checkpoint: ended short of the last step"
    )


def test_an_adapter_that_a_crash_kept_from_being_published_is_published(context: Context) -> None:
    def dies_before_the_adapter(file: Path) -> Iterator[JobStatus]:
        yield from trains(to=6, then="running")(file)
        shutil.rmtree(context.run.adapters / "step_6")
        yield "failed"

    record = train_with(context, dies_before_the_adapter, trains(to=6))
    assert tried(context) == [(1, 0, 6), (2, 6, 6)]
    assert find_training(context.run) == record


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_changed_adapter_is_not_taken_for_the_trained_one_and_is_made_again(
    context: Context, name: str
) -> None:
    record = train_with(context, trains(to=6))
    (record.adapter / name).write_bytes(b"something else")
    assert find_training(context.run) is None
    again = train_with(context, trains(to=6))
    assert again.adapter_digest == record.adapter_digest
    assert find_training(context.run) == again


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "manifest.json", "."])
def test_a_deleted_adapter_is_not_taken_for_the_trained_one_and_is_made_again(
    context: Context, name: str
) -> None:
    record = train_with(context, trains(to=6))
    path = record.adapter / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert find_training(context.run) is None
    assert train_with(context, trains(to=6)).adapter_digest == record.adapter_digest


def test_a_damaged_manifest_is_as_good_as_none(context: Context) -> None:
    record = train_with(context, trains(to=6))
    (record.adapter / "manifest.json").write_bytes(b"\xff{")
    assert find_training(context.run) is None


def test_another_adapter_under_the_same_step_is_not_the_recorded_one(context: Context) -> None:
    record = train_with(context, trains(to=6))
    manifest = record.adapter / "manifest.json"
    manifest.write_text(manifest.read_text().replace(record.adapter_digest, "f" * 64))
    assert find_training(context.run) is None
