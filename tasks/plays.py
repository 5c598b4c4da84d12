"""Players of the fixed mazes: where the results of each lie, and the job that makes them."""

import time
from dataclasses import dataclass
from pathlib import Path

from prefect.logging import get_run_logger

from configs.digests import digest_of
from configs.jobs import AdapterManifest, EvaluateJob, EvaluationSummary, HeldOut
from configs.schema import PostTrainConfig
from tasks.adapters import read_intact
from tasks.attempt_log import SERVER_LOG, AttemptLog
from tasks.backends.protocols import Image, JobStatus
from tasks.cluster import ensure_cluster, give_up_cluster
from tasks.context import Context
from tasks.failures import account, classify
from tasks.home import Home
from tasks.hosted import Hosted
from tasks.jobs import follow, job_environment, program
from tasks.records import write_whole
from tasks.run_dir import Run, check_base_model, open_run
from tasks.words import quote, tail

_MAX_TRIES = 3
_RESULTS = ("episodes.jsonl", "summary.json")
_DRAWS_NO_RESULT = {"held_out_mazes", "held_out_larger_mazes"}
"""Settings of the evaluation that leave the outcomes on the fixed mazes alone."""


@dataclass(frozen=True)
class Player:
    """A base model, perhaps with an adapter, that plays by the rules of a run."""

    name: str
    config: PostTrainConfig
    base_digest: str
    adapter: Path | None = None
    adapter_digest: str | None = None


def base_player(run: Run) -> Player:
    return Player("the base", run.config, run.file.base_digest)


def candidate_player(run: Run, adapter: Path, manifest: AdapterManifest) -> Player:
    name = f"adapter {manifest.digest[:12]}"
    return Player(name, run.config, manifest.base_digest, adapter, manifest.digest)


def champion_player(run: Run, home: Home, hosted: Hosted) -> Player | None:
    """An adapter of any run, to play by the rules of `run`; None where its files are gone.

    Its base and the shape of its adapter are its own run's.
    """
    try:
        own = open_run(home.runs, hosted.run_id)
        adapter = own.adapter(hosted.step)
        manifest = read_intact(adapter)
        if manifest is None or manifest.digest != hosted.adapter_digest:
            return None
        if check_base_model(own.config.model.path) != manifest.base_digest:
            return None
    except ValueError:
        return None
    model = run.config.model.model_copy(update={"path": own.config.model.path})
    train = run.config.train.model_copy(update={"lora": own.config.train.lora})
    config = run.config.model_copy(update={"model": model, "train": train})
    name = f"the champion {manifest.digest[:12]}"
    return Player(name, config, manifest.base_digest, adapter, manifest.digest)


def inputs_of(run: Run, player: Player) -> str:
    """Digest of all that the outcomes on the fixed mazes depend on."""
    file, config = run.file, run.config
    rules = [
        config.evaluate.model_dump(mode="json", exclude=_DRAWS_NO_RESULT),
        config.mazes.model_dump(mode="json", exclude={"test_set"}),
        config.train.device,
        config.model.max_model_len,
    ]
    digests = [file.image_digest, player.base_digest, player.adapter_digest, file.mazes_digest]
    return digest_of([*digests, rules])


def read_summary(run: Run, folder: Path) -> EvaluationSummary | None:
    """The summary in `folder` if every fixed maze has its outcome in it."""
    summary = read_any_summary(folder)
    mazes = run.mazes()
    complete = summary and len(summary.solved) == len(mazes.mazes)
    return summary if summary and complete and summary.mazes_digest == mazes.digest else None


def read_any_summary(folder: Path) -> EvaluationSummary | None:
    """The summary in `folder`, of whatever mazes; None where there is no whole one."""
    try:
        return EvaluationSummary.model_validate_json((folder / "summary.json").read_text())
    except (FileNotFoundError, ValueError):
        return None


def play(
    context: Context, image: Image, player: Player, held_out: tuple[HeldOut, ...] = ()
) -> Path:
    """The folder with the player's results on all fixed mazes; those in `held_out` are there, too.

    What was played before is read, also where another run has played it.

    Raises:
        RuntimeError: the job failed, or not every maze has an outcome.
    """
    log, run = get_run_logger(), context.run
    inputs = inputs_of(run, player)
    output = run.evaluation(inputs)
    if read_summary(run, output) is None:
        _take_over(context, output)
    missing = tuple(each for each in held_out if read_any_summary(each.output) is None)
    if read_summary(run, output) is None or missing:
        mazes = len(run.mazes().mazes) + sum(each.num_mazes for each in missing)
        log.info("evaluate: %s plays %d mazes", player.name, mazes)
        job = EvaluateJob(
            config=player.config,
            adapter=player.adapter,
            output=output,
            held_out=missing,
            scratch=run.scratch(f"{run.run_id}-eval-{inputs[:12]}"),
        )
        _run_job(context, image, job)
    summary = read_summary(run, output)
    if summary is None or not are_played(held_out):
        raise RuntimeError(f"the evaluation left no complete results in {output}")
    log.info("evaluate: %s solves %d of %d", player.name, summary.num_solved, summary.num_mazes)
    return output


def are_played(held_out: tuple[HeldOut, ...]) -> bool:
    return all(read_any_summary(each.output) for each in held_out)


def _take_over(context: Context, output: Path) -> None:
    """Copy the results that another run has of the very same play, so that this run keeps them."""
    for found in sorted(context.home.runs.glob(f"*/evals/{output.name}")):
        if read_summary(context.run, found):
            output.mkdir(parents=True, exist_ok=True)
            for name in _RESULTS:
                write_whole(output / name, (found / name).read_text())
            return


def _run_job(context: Context, image: Image, job: EvaluateJob) -> None:
    """Have the job done, again where its failure is one that passes.

    Raises:
        RuntimeError: it failed for good; one line.
    """
    for tries_left in reversed(range(_MAX_TRIES)):
        status, text = _try_job(context, image, job)
        if status == "succeeded":
            return
        failure = classify(status, text, has_moved=False)
        said = account(failure, text, tail(job.scratch / SERVER_LOG))
        reason = f"the evaluation {status}: {said}"
        get_run_logger().warning("evaluate: the last lines of its job:%s", quote(text))
        if failure.action == "stop" or not tries_left:
            raise RuntimeError(f"{reason}. Next: {failure.advice} ({job.scratch})")
        get_run_logger().warning("evaluate: %s; next: %s", reason, failure.action)
        if failure.action == "new cluster":
            give_up_cluster(context)
        time.sleep(failure.wait_s)


def _try_job(context: Context, image: Image, job: EvaluateJob) -> tuple[JobStatus, str]:
    """Run the job, or adopt it, to its end; that and its log."""
    jobs = context.backends.jobs(ensure_cluster(context, image))
    submission_id = job.scratch.name
    file = job.write(job.scratch / "job.json")
    # Whoever comes here lacks results, so also a job that succeeded has to be done again.
    if jobs.status(submission_id) in ("succeeded", "failed", "stopped"):
        jobs.delete(submission_id)
    is_new = jobs.status(submission_id) == "unknown"
    if is_new:
        _clear_damaged(context.run, job)
    command = program(image, "containers.trainer.evaluate_main", file)
    jobs.submit_or_adopt(submission_id, command, job_environment(image))
    log = AttemptLog(jobs, submission_id, job.scratch, "evaluation", is_new=is_new)
    return follow(jobs, submission_id, log.poll), log.end()


def _clear_damaged(run: Run, job: EvaluateJob) -> None:
    """The job plays what has no summary; one that is damaged, or of other mazes, goes."""
    damaged = [] if read_summary(run, job.output) else [job.output]
    damaged += [each.output for each in job.held_out if read_any_summary(each.output) is None]
    for folder in damaged:
        (folder / "summary.json").unlink(missing_ok=True)
