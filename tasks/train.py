"""Stage train: attempts at one Ray job until the last step has its committed checkpoint."""

import shutil
import time

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tasks import attempts, records
from tasks.adapters import read_intact
from tasks.attempts import Attempt
from tasks.backends.protocols import Cluster, Image, Jobs
from tasks.check import train_job
from tasks.context import Context
from tasks.jobs import follow, job_environment, program, telling_line
from tasks.records import TrainRecord
from tasks.run_dir import Run
from tasks.track import Relay

_SHORT = "ended short of the last step"


def find_training(run: Run) -> TrainRecord | None:
    """The record of the finished training, if its adapter is still what it says."""
    record = records.find(TrainRecord, run.file.identity, run.records)
    manifest = read_intact(record.adapter) if record else None
    return record if record and manifest and manifest.digest == record.adapter_digest else None


@task(task_run_name="train", cache_policy=NO_CACHE)
def train(context: Context, cluster: Cluster, image: Image) -> TrainRecord:
    """Train to the last step, going on from what earlier attempts have left.

    Raises:
        RuntimeError: too many attempts in a row without a new checkpoint; says how the last
            one ended and where its log is.
    """
    log = get_run_logger()
    run, jobs, began = context.run, context.backends.jobs(cluster), time.monotonic()
    relay = Relay(context)
    while (attempt := _open_attempt(run, jobs)) or not _is_trained(run):
        attempt = attempt or _start_attempt(run, jobs, image)
        log.info("train: attempt %d from step %d", attempt.number, attempt.start_step)
        status = follow(jobs, attempt.submission_id, relay.poll)
        text = jobs.logs(attempt.submission_id)
        (run.scratch(f"attempt-{attempt.number}") / "job.log").write_text(text)
        done = _is_trained(run)
        ending = _SHORT if status == "succeeded" and not done else status
        reason = ending if ending == "succeeded" else f"{ending}: {telling_line(text)}"
        attempts.end(run.attempts, attempt, run.committed_step(), reason)
        if ending != "succeeded":
            log.warning("train: attempt %d %s", attempt.number, reason)
        if not done:
            _give_up_without_progress(run, reason)
    relay.poll()
    record = _record(run, time.monotonic() - began)
    records.save(record, run.records)
    return record


def _open_attempt(run: Run, jobs: Jobs) -> Attempt | None:
    """The newest attempt, if its job runs or ended unseen: adopted rather than doubled."""
    known = attempts.all_attempts(run.attempts)
    if not known:
        return None
    status = jobs.status(known[-1].submission_id)
    if status in ("pending", "running") or (known[-1].ended is None and status != "unknown"):
        return known[-1]
    if known[-1].ended is None:
        attempts.end(run.attempts, known[-1], run.committed_step(), "lost: its flow or node died")
    return None


def _start_attempt(run: Run, jobs: Jobs, image: Image) -> Attempt:
    _clear_damaged_adapter(run)
    name = flow_run.name or "unknown"
    attempt = attempts.take_next(run.attempts, run.run_id, name, run.committed_step())
    job = train_job(run, attempt.number)
    file = job.write(run.scratch(f"attempt-{attempt.number}") / "job.json")
    command = program(image, "containers.trainer.train_main", file)
    jobs.submit_or_adopt(attempt.submission_id, command, job_environment(image))
    return attempt


def _is_trained(run: Run) -> bool:
    """The last step is committed and its adapter is out: a crash may fall between the two."""
    step = run.config.train.steps
    return run.committed_step() >= step and read_intact(run.adapter_folder(step)) is not None


def _clear_damaged_adapter(run: Run) -> None:
    """The trainer publishes where nothing is, so the last step's adapter is intact or goes."""
    folder = run.adapter_folder(run.config.train.steps)
    if folder.exists() and read_intact(folder) is None:
        shutil.rmtree(folder)


def _give_up_without_progress(run: Run, reason: str) -> None:
    limit = run.config.train.max_attempts
    if attempts.fruitless(attempts.all_attempts(run.attempts)) >= limit:
        raise RuntimeError(
            f"{limit} attempts in a row brought no new checkpoint; the last one {reason}. "
            f"Read {run.folder / 'scratch'}, mend the cause and start the same flow again: "
            f"it goes on from step {run.committed_step()}"
        )


def _record(run: Run, seconds: float) -> TrainRecord:
    step = run.config.train.steps
    adapter = run.adapter(step)
    manifest = read_intact(adapter)
    assert manifest is not None  # the training loop ends with an intact adapter only
    return TrainRecord(
        inputs=run.file.identity,
        step=step,
        attempts=len(attempts.all_attempts(run.attempts)),
        seconds=seconds,
        adapter=adapter,
        adapter_digest=manifest.digest,
    )
