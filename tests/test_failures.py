"""Classes of failure: what is recognised, and what training does about each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.jobs import TrainJob
from tasks import attempts, train, watchdog
from tasks.backends.protocols import JobStatus
from tasks.context import Context
from tasks.failures import classify
from tests.fakes import CLUSTER, IMAGE, FakeClusters, FakeJobs, Program
from tests.samples import make_context, reason, trains, without_waiting


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Six steps, a checkpoint after every second; nothing waits."""
    without_waiting(monkeypatch)
    return make_context(tmp_path, train__max_attempts=3)


def jobs_of(context: Context) -> FakeJobs:
    return context.backends.jobs(CLUSTER)


def clusters_of(context: Context) -> FakeClusters:
    assert isinstance(context.backends.clusters, FakeClusters)
    return context.backends.clusters


def train_with(context: Context, *programs: Program, output: str = "") -> None:
    jobs_of(context).programs = list(programs)
    jobs_of(context).output = output or jobs_of(context).output
    with disable_run_logger():
        train.train.fn(context, IMAGE)


def causes(context: Context) -> list[str | None]:
    return [attempt.cause for attempt in attempts.all_attempts(context.run.attempts)]


@pytest.mark.parametrize(
    ("last_line", "cause"),
    [
        ("OSError: [Errno 28] No space left on device: 'global_step_4'", "storage full"),
        ("OSError: [Errno 5] Input/output error", "storage away"),
        ("OSError: [Errno 116] Stale file handle", "storage away"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("ray.exceptions.OutOfMemoryError: Task was killed", "out of memory"),
        ("FloatingPointError: step 5: policy/grad_norm is not finite", "loss not finite"),
        ("The actor died because its node was terminated", "lost node"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly", "lost worker"),
        (
            "ray.exceptions.ActorDiedError: The actor died. There are some potential root causes. "
            "(1) The process is killed by SIGKILL by OOM killer due to high memory usage.",
            "lost worker",
        ),
        ("Error: interrupted by SIGTERM after step 3, which is saved", "interrupted"),
        ("aiohttp.client_exceptions.ClientConnectorError: 127.0.0.1:1", "lost inference server"),
        ("RuntimeError: the inference server ended while starting", "lost inference server"),
        ("Job entrypoint command failed with exit code -9, last lines", "killed"),
        ("SkyRL refuses the configuration: 30 == 32", "bad data"),
        ("ValueError: something new", "unknown failure"),
    ],
)
def test_the_last_words_of_a_job_name_its_class(last_line: str, cause: str) -> None:
    log = f"step 3 done\nTraceback (most recent call last):\n{last_line}\n"
    assert classify("failed", log, has_moved=True).cause == cause


def test_code_that_never_ran_is_broken_and_code_that_did_is_not() -> None:
    log = "Traceback\nModuleNotFoundError: No module named 'flash_attn'\n"
    assert classify("failed", log, has_moved=False).cause == "bad code"
    assert classify("failed", log, has_moved=True).cause == "unknown failure"


def test_old_words_far_from_the_end_do_not_count() -> None:
    log = "No space left on device\n" + "step\n" * 10_000 + "ValueError: something new\n"
    assert classify("failed", log, has_moved=True).cause == "unknown failure"


def test_a_full_disk_stops_at_once_and_says_what_to_do(context: Context) -> None:
    full = "OSError: [Errno 28] No space left on device\n"
    line = reason(lambda: train_with(context, trains(to=3, then="failed"), output=full))
    assert line == (
        "storage full: OSError: [Errno 28] No space left on device. Next: make room on the disk "
        f"of the run's folder ({context.run.folder}/scratch), then start the same flow again: it "
        "goes on from step 2"
    )


def test_after_too_little_memory_the_next_attempt_takes_smaller_batches(context: Context) -> None:
    passes: list[int] = []

    def hungry(file: Path) -> Iterator[JobStatus]:
        passes.append(TrainJob.read(file).config.train.micro_batch_episodes)
        yield from trains(to=6, then="succeeded" if len(passes) == 3 else "failed")(file)

    def first(file: Path) -> Iterator[JobStatus]:
        passes.append(TrainJob.read(file).config.train.micro_batch_episodes)
        yield from trains(to=1, then="failed")(file)

    train_with(context, first, first, hungry, output="torch.OutOfMemoryError: no\n")
    whole = context.config.train.micro_batch_episodes
    assert passes == [whole, whole // 2, whole // 4]
    assert causes(context) == ["out of memory", "out of memory", None]


def test_a_lost_node_brings_a_new_cluster(context: Context) -> None:
    died = "ray.exceptions.NodeDiedError: the node died\n"
    train_with(context, trains(to=3, then="failed"), trains(to=6), output=died)
    assert causes(context) == ["lost node", None]
    assert clusters_of(context).started == 2


def test_a_lost_worker_is_replaced_on_the_same_cluster(context: Context) -> None:
    died = "ray.exceptions.ActorDiedError: the actor died\n"
    train_with(context, trains(to=3, then="failed"), trains(to=6), output=died)
    assert causes(context) == ["lost worker", None]
    assert clusters_of(context).started == 1


def test_a_loss_that_is_not_finite_twice_at_one_step_stops(context: Context) -> None:
    output = "FloatingPointError: step 3: policy/grad_norm is not finite\n"
    failing = trains(to=2, then="failed")
    line = reason(lambda: train_with(context, failing, failing, failing, output=output))
    assert line.startswith("2 attempts in a row brought no checkpoint: loss not finite: ")
    assert causes(context) == ["loss not finite"] * 3


def test_a_job_that_a_person_stopped_is_not_started_again(context: Context) -> None:
    line = reason(lambda: train_with(context, trains(to=3, then="stopped")))
    assert line.startswith("cancelled by a person: ")
    assert len(jobs_of(context).submitted) == 1


def test_a_hanging_attempt_is_diagnosed_and_replaced_on_a_new_cluster(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_LEAST_S", 0.05)
    monkeypatch.setattr(watchdog, "_TIMES_THE_SLOWEST", 0.0)
    train_with(context, trains(to=3, then="running"), trains(to=6))
    assert causes(context) == ["no progress", None]
    assert clusters_of(context).started == 2
    scratch = context.run.folder / "scratch" / "attempt-1"
    assert (scratch / "diagnosis.txt").read_text() == "MainThread: waits for a lock\n"
