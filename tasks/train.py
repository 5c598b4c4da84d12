"""Stage train: attempts at one Ray job until the last step has its committed checkpoint."""

import shutil
import time

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from tasks import attempts, records
from tasks.adapters import read_intact
from tasks.attempt_log import SERVER_LOG, AttemptLog
from tasks.attempts import Attempt
from tasks.backends.object_store import FileStore
from tasks.backends.protocols import Image, Jobs
from tasks.check import train_job
from tasks.cluster import ensure_cluster, give_up_cluster
from tasks.context import Context
from tasks.failures import LOST_CLUSTER, STALLED, Failure, account, classify
from tasks.jobs import follow, job_environment, program
from tasks.machines import processes
from tasks.records import TrainRecord
from tasks.run_dir import Run
from tasks.track import Relay
from tasks.turn import check_turn
from tasks.watchdog import Stalled, Watchdog
from tasks.words import quote, tail


def find_training(run: Run) -> TrainRecord | None:
    """The record of the finished training, if its adapter is still what it says."""
    record = records.find(TrainRecord, run.file.identity, run.records)
    manifest = read_intact(record.adapter) if record else None
    return record if record and manifest and manifest.digest == record.adapter_digest else None


@task(task_run_name="train", cache_policy=NO_CACHE)
def train(context: Context, image: Image) -> TrainRecord:
    """Train to the last step, going on from what earlier attempts have left.

    Raises:
        RuntimeError: the failure is not one to retry, or it was retried often enough; says what
            it was, the next move, and where training goes on.
    """
    run, began, relay = context.run, time.monotonic(), Relay(context)
    while True:
        cluster = ensure_cluster(context, image)
        jobs = context.backends.jobs(cluster)
        attempt = _open_attempt(run, jobs)
        if attempt is None and _is_trained(run):
            break
        attempt = attempt or _start_attempt(run, jobs, image, cluster.num_nodes - 1)
        failure, reason = _attend(context, jobs, attempt, relay)
        cause = failure.cause if failure else None
        check_turn(run)  # else the attempt and its cluster are a successor's to judge
        attempts.end(run.attempts, attempt, run.committed_step(), reason, cause)
        if failure:
            _answer(context, failure, reason)
    relay.poll()
    record = _record(run, time.monotonic() - began)
    records.save(record, run.records)
    return record


def _open_attempt(run: Run, jobs: Jobs) -> Attempt | None:
    """The newest attempt, if its job runs or ended unseen: adopted rather than doubled."""
    check_turn(run)
    known = attempts.all_attempts(run.attempts)
    if not known:
        return None
    status = jobs.status(known[-1].submission_id)
    if status in ("pending", "running") or (known[-1].ended is None and status != "unknown"):
        return known[-1]
    if known[-1].ended is None:
        reason = f"{LOST_CLUSTER.cause}: its flow or node died"
        attempts.end(run.attempts, known[-1], run.committed_step(), reason, LOST_CLUSTER.cause)
    return None


def _start_attempt(run: Run, jobs: Jobs, image: Image, num_workers: int) -> Attempt:
    _clear_damaged_adapter(run)
    halved = sum(known.cause == "out of memory" for known in attempts.all_attempts(run.attempts))
    name = flow_run.name or "unknown"
    attempt = attempts.take_next(FileStore(run.attempts), run.run_id, name, run.committed_step())
    job = train_job(
        run,
        attempt.number,
        run.config.train.micro_batch_episodes >> halved or 1,
        processes(run.config, num_workers),
    )
    file = job.write(run.scratch(f"attempt-{attempt.number}") / "job.json")
    command = program(image, "containers.trainer.train_main", file)
    jobs.submit_or_adopt(attempt.submission_id, command, job_environment(image))
    get_run_logger().info("train: attempt %d from step %d", attempt.number, attempt.start_step)
    return attempt


def _attend(
    context: Context, jobs: Jobs, attempt: Attempt, relay: Relay
) -> tuple[Failure | None, str]:
    """Follow an attempt to its end: the class of its failure, if it is one, and a sentence."""
    run = context.run
    watchdog = Watchdog(run)

    scratch = run.scratch(f"attempt-{attempt.number}")
    log = AttemptLog(jobs, attempt.submission_id, scratch)

    def look() -> None:
        relay.poll()
        log.poll()
        watchdog.check()

    try:
        status = follow(jobs, attempt.submission_id, look)
    except Stalled as stall:
        (scratch / "diagnosis.txt").write_text(context.backends.clusters.diagnose(run.config.name))
        log.end()
        return STALLED, f"{STALLED.cause}: {stall}; see {scratch / 'diagnosis.txt'}"
    text = log.end()
    if _is_trained(run):
        return None, "succeeded" if status == "succeeded" else f"trained; then its job {status}"
    failure = classify(status, text, has_moved=watchdog.has_moved)
    get_run_logger().warning("train: the last lines of attempt %d:%s", attempt.number, quote(text))
    return failure, account(failure, text, tail(scratch / SERVER_LOG))


def _answer(context: Context, failure: Failure, reason: str) -> None:
    """Make ready for the next attempt, or give up.

    Raises:
        RuntimeError: no further attempt; one line.
    """
    run, log = context.run, get_run_logger()
    fruitless = attempts.fruitless(attempts.all_attempts(run.attempts))
    alike = sum(attempt.cause == failure.cause for attempt in fruitless)
    if failure.action == "stop" or alike >= failure.budget:
        _give_up(run, failure, reason, alike)
    if len(fruitless) >= run.config.train.max_attempts:
        _give_up(run, failure, reason, len(fruitless))
    log.warning("train: %s; next: %s", reason, failure.action)
    if failure.action == "new cluster":
        give_up_cluster(context)
    time.sleep(failure.wait_s)


def _give_up(run: Run, failure: Failure, reason: str, num_attempts: int) -> None:
    what = "" if num_attempts < 2 else f"{num_attempts} attempts in a row brought no checkpoint: "
    raise RuntimeError(
        f"{what}{reason}. Next: {failure.advice} ({run.folder / 'scratch'}), then start the same "
        f"flow again: it goes on from step {run.committed_step()}"
    )


def _is_trained(run: Run) -> bool:
    """The last step is committed and its adapter is out: a crash may fall between the two."""
    step = run.config.train.steps
    return run.committed_step() >= step and read_intact(run.adapter_folder(step)) is not None


def _clear_damaged_adapter(run: Run) -> None:
    """The trainer publishes where nothing is, so the last step's adapter is intact or goes."""
    folder = run.adapter_folder(run.config.train.steps)
    if folder.exists() and read_intact(folder) is None:
        shutil.rmtree(folder)


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
