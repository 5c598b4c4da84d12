"""Stage evaluate: the base and the adapter on all fixed mazes, or an error."""

import time
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.digests import digest_of
from configs.jobs import AdapterManifest, EvaluateJob, EvaluationSummary
from tasks import records
from tasks.adapters import read_intact
from tasks.backends.protocols import Image, JobStatus
from tasks.cluster import ensure_cluster, give_up_cluster
from tasks.context import Context
from tasks.failures import classify, telling_line
from tasks.jobs import follow, job_environment, program
from tasks.records import EvaluateRecord
from tasks.run_dir import Run

_MAX_TRIES = 3


def find_evaluation(run: Run, adapter: Path) -> EvaluateRecord | None:
    """The record of this adapter's evaluation, if its results are all there."""
    inputs = _inputs(run, _manifest(adapter).digest)
    record = records.find(EvaluateRecord, inputs, run.evaluation(inputs))
    if record is None:
        return None
    complete = [_summary(run, folder) for folder in (record.base_results, record.results)]
    return record if all(complete) else None


def require_evaluation(run: Run, adapter: Path) -> EvaluateRecord:
    """The record of this adapter's evaluation: nothing is served that was not measured.

    Raises:
        ValueError: there is none, and which flow makes it; or the adapter is damaged.
    """
    record = find_evaluation(run, adapter)
    if record is None:
        raise ValueError(
            f"adapter {adapter.name} of run {run.run_id} was not evaluated: "
            "run the deployment evaluate/evaluate for it first"
        )
    return record


@task(task_run_name="evaluate", cache_policy=NO_CACHE)
def evaluate(context: Context, image: Image, adapter: Path) -> EvaluateRecord:
    """Play the fixed mazes with the base and with `adapter`; what was played before is read.

    Raises:
        ValueError: the adapter is damaged or was trained on another base.
        RuntimeError: a job failed, or not every maze has an outcome.
    """
    run, manifest = context.run, _manifest(adapter)
    if manifest.base_digest != run.file.base_digest:
        raise ValueError(
            f"adapter {adapter} was trained on another base ({manifest.base_digest[:12]}) than "
            f"{run.config.model.path} ({run.file.base_digest[:12]})"
        )
    base_results = _play(context, image, None, None)
    results = _play(context, image, adapter, manifest.digest)
    base, solved = _summary(run, base_results), _summary(run, results)
    assert base is not None and solved is not None
    inputs = _inputs(run, manifest.digest)
    record = EvaluateRecord(
        inputs=inputs,
        step=manifest.step,
        adapter=adapter,
        adapter_digest=manifest.digest,
        mazes_digest=run.file.mazes_digest,
        num_mazes=solved.num_mazes,
        num_solved_base=base.num_solved,
        num_solved=solved.num_solved,
        base_results=base_results,
        results=results,
    )
    records.save(record, run.evaluation(inputs))
    records.save(record, run.records)
    return record


def _play(context: Context, image: Image, adapter: Path | None, digest: str | None) -> Path:
    """The folder with one model's results on all mazes."""
    log, run = get_run_logger(), context.run
    who = "the base" if adapter is None else f"adapter {digest[:12] if digest else ''}"
    inputs = _inputs(run, digest)
    output = run.evaluation(inputs)
    summary = _summary(run, output)
    if summary is None:
        log.info("evaluate: %s plays %d mazes", who, len(run.mazes().mazes))
        submission_id = f"{run.run_id}-eval-{inputs[:12]}"
        job = EvaluateJob(
            config=run.config,
            adapter=adapter,
            output=output,
            scratch=run.scratch(submission_id),
        )
        _run_job(context, image, submission_id, job)
        summary = _summary(run, output)
    if summary is None:
        raise RuntimeError(f"the evaluation left no complete results in {output}")
    log.info("evaluate: %s solves %d of %d", who, summary.num_solved, summary.num_mazes)
    return output


def _run_job(context: Context, image: Image, submission_id: str, job: EvaluateJob) -> None:
    """Have the job done, again where its failure is one that passes.

    Raises:
        RuntimeError: it failed for good; one line.
    """
    for tries_left in reversed(range(_MAX_TRIES)):
        status, text = _try_job(context, image, submission_id, job)
        if status == "succeeded":
            return
        failure = classify(status, text, has_moved=False)
        reason = f"the evaluation {status}: {failure.cause}: {telling_line(text)}"
        if failure.action == "stop" or not tries_left:
            raise RuntimeError(f"{reason}. Next: {failure.advice} ({job.scratch})")
        get_run_logger().warning("evaluate: %s; next: %s", reason, failure.action)
        if failure.action == "new cluster":
            give_up_cluster(context)
        time.sleep(failure.wait_s)


def _try_job(
    context: Context, image: Image, submission_id: str, job: EvaluateJob
) -> tuple[JobStatus, str]:
    """Run the job, or adopt it, to its end; that and its log."""
    jobs = context.backends.jobs(ensure_cluster(context, image))
    file = job.write(job.scratch / "job.json")
    # Whoever comes here lacks results, so also a job that succeeded has to be done again.
    if jobs.status(submission_id) in ("succeeded", "failed", "stopped"):
        jobs.delete(submission_id)
    command = program(image, "containers.trainer.evaluate_main", file)
    jobs.submit_or_adopt(submission_id, command, job_environment(image))
    status = follow(jobs, submission_id, lambda: None)
    text = jobs.logs(submission_id)
    (job.scratch / "job.log").write_text(text)
    return status, text


def _inputs(run: Run, adapter_digest: str | None) -> str:
    file = run.file
    rendering = run.config.mazes.model_dump(mode="json", exclude={"test_set"})
    model = run.config.model.max_model_len
    settings = [run.config.evaluate, rendering, run.config.train.device, model]
    return digest_of(
        [file.image_digest, file.base_digest, adapter_digest, file.mazes_digest, settings]
    )


def _summary(run: Run, folder: Path) -> EvaluationSummary | None:
    """The summary in `folder` if every maze of the set has its outcome in it."""
    try:
        summary = EvaluationSummary.model_validate_json((folder / "summary.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return summary if len(summary.solved) == len(run.mazes().mazes) else None


def _manifest(adapter: Path) -> AdapterManifest:
    manifest = read_intact(adapter)
    if manifest is None:
        raise ValueError(
            f"adapter {adapter} is damaged, its files are not those of its manifest: choose "
            "another step; starting post-train again makes that of the last step anew"
        )
    return manifest
