"""Stage train: attempts at one Ray job until the last step has its committed checkpoint."""

import time

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from configs.digests import digest_of_file
from configs.jobs import AdapterManifest
from tasks import attempts, records
from tasks.attempts import Attempt
from tasks.backends.protocols import Cluster, Image, Jobs
from tasks.check import train_job
from tasks.context import Context
from tasks.jobs import follow, job_environment, program, telling_line
from tasks.records import TrainRecord
from tasks.run_dir import Run
from tasks.track import Relay


def find_training(run: Run) -> TrainRecord | None:
    """The record of the finished training, if its adapter is still what it says."""
    record = records.find(TrainRecord, run.file.identity, run.records)
    if record is None or not (record.adapter / "manifest.json").is_file():
        return None
    manifest = AdapterManifest.model_validate_json((record.adapter / "manifest.json").read_text())
    intact = all(
        (record.adapter / name).is_file() and digest_of_file(record.adapter / name) == digest
        for name, digest in manifest.files.items()
    )
    return record if intact and manifest.digest == record.adapter_digest else None


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
    while run.committed_step() < run.config.train.steps:
        attempt = _running_attempt(run, jobs) or _start_attempt(run, jobs, image)
        log.info("train: attempt %d from step %d", attempt.number, attempt.start_step)
        status = follow(jobs, attempt.submission_id, relay.poll)
        text = jobs.logs(attempt.submission_id)
        (run.scratch(f"attempt-{attempt.number}") / "job.log").write_text(text)
        reason = status if status == "succeeded" else f"{status}: {telling_line(text)}"
        attempts.end(run.attempts, attempt, run.committed_step(), reason)
        if status != "succeeded":
            log.warning("train: attempt %d %s", attempt.number, reason)
            _give_up_without_progress(run, reason)
    relay.poll()
    record = _record(run, time.monotonic() - began)
    records.save(record, run.records)
    return record


def _running_attempt(run: Run, jobs: Jobs) -> Attempt | None:
    """The newest attempt, if its job still runs: adopted rather than doubled."""
    known = attempts.all_attempts(run.attempts)
    if known and jobs.status(known[-1].submission_id) in ("pending", "running"):
        return known[-1]
    if known and known[-1].ended is None:
        attempts.end(run.attempts, known[-1], run.committed_step(), "lost: its flow or node died")
    return None


def _start_attempt(run: Run, jobs: Jobs, image: Image) -> Attempt:
    name = flow_run.name or "unknown"
    attempt = attempts.take_next(run.attempts, run.run_id, name, run.committed_step())
    job = train_job(run, attempt.number)
    file = job.write(run.scratch(f"attempt-{attempt.number}") / "job.json")
    command = program(image, "containers.trainer.train_main", file)
    jobs.submit_or_adopt(attempt.submission_id, command, job_environment(image))
    return attempt


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
    manifest = AdapterManifest.model_validate_json((adapter / "manifest.json").read_text())
    return TrainRecord(
        inputs=run.file.identity,
        step=step,
        attempts=len(attempts.all_attempts(run.attempts)),
        seconds=seconds,
        adapter=adapter,
        adapter_digest=manifest.digest,
    )
