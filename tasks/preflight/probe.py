"""Stages that ask the image and the machines: one process here, or one job on the cluster."""

import os
import subprocess
import time
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.probes import Probe, ProbeJob
from tasks import attempts
from tasks.backends.protocols import Cluster, Image, Jobs
from tasks.check import train_job
from tasks.cluster import ensure_cluster
from tasks.context import Context
from tasks.jobs import follow, job_environment, program
from tasks.preflight.findings import refuse
from tasks.preflight.machines import judge
from tasks.run_dir import Run

_MODULE = "containers.trainer.preflight_main"
_TIMEOUT_S = 300
_CLUSTER_TIMEOUT_S = 1200
_RUNS = ("pending", "running")
_ENDED = ("succeeded", "failed", "stopped")


@task(task_run_name="probe image", cache_policy=NO_CACHE)
def probe_image(context: Context, image: Image) -> None:
    """Ask the image and this machine, where both are at hand; on Kubernetes the cluster is asked.

    Raises:
        ValueError: the run is doomed; one line with the reason and the next move.
    """
    if context.config.cluster.kuberay:
        return
    file, output = _write_job(context.run, num_workers=0)
    done = subprocess.run(
        program(image, _MODULE, file),
        cwd=image.app,  # Python looks for modules in its directory first
        env={**os.environ, **job_environment(image)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().split("\n")[-1])
    _judge(context, output)


@task(task_run_name="probe cluster", cache_policy=NO_CACHE)
def probe_cluster(context: Context, image: Image) -> None:
    """Ask every worker of the cluster, unless they work already or have nothing left to train.

    Raises:
        ValueError: the run is doomed; one line with the reason and the next move.
        RuntimeError: the probe itself failed; names its log.
    """
    run = context.run
    if context.config.cluster.kuberay is None or run.committed_step() >= run.config.train.steps:
        return
    cluster = ensure_cluster(context, image)
    jobs = context.backends.jobs(cluster)
    if _trains(run, jobs):
        get_run_logger().info("preflight: training runs already, so its GPUs are not asked")
        return
    _judge(context, _ask(context, image, jobs, cluster))


def _ask(context: Context, image: Image, jobs: Jobs, cluster: Cluster) -> Path:
    """Run the probe as a job, or adopt the one that a flow that died has left; its output."""
    run, name = context.run, f"{context.run.run_id}-preflight"
    status = jobs.status(name)
    if status in _ENDED:
        jobs.delete(name)
    if status not in _RUNS:
        file, _ = _write_job(run, num_workers=run.config.cluster.num_workers)
        jobs.submit_or_adopt(name, program(image, _MODULE, file), job_environment(image))
    output = _output(run)
    deadline = time.monotonic() + _CLUSTER_TIMEOUT_S

    def look() -> None:
        if time.monotonic() > deadline:
            jobs.stop(name)
            raise RuntimeError(
                f"preflight: cluster {cluster.name} did not answer in {_CLUSTER_TIMEOUT_S} s: "
                "look at the logs of its nodes, then start the same flow again"
            )

    status = follow(jobs, name, look)
    log = run.scratch("preflight") / "job.log"
    log.write_text(jobs.logs(name))
    if status != "unknown":
        jobs.delete(name)  # the next flow asks anew
    if status != "succeeded" or not output.is_file():
        raise RuntimeError(f"preflight: the probe of cluster {cluster.name} {status}: see {log}")
    return output


def _trains(run: Run, jobs: Jobs) -> bool:
    known = attempts.all_attempts(run.attempts)
    return bool(known) and jobs.status(known[-1].submission_id) in _RUNS


def _write_job(run: Run, num_workers: int) -> tuple[Path, Path]:
    """The job's file and the file that it will write, which is not there yet."""
    output = _output(run)
    output.unlink(missing_ok=True)
    train = train_job(run, attempt=len(attempts.all_attempts(run.attempts)) + 1)
    job = ProbeJob(train=train, num_workers=num_workers, shared=run.folder, output=output)
    return job.write(output.with_name("job.json")), output


def _output(run: Run) -> Path:
    return run.scratch("preflight") / "probe.json"


def _judge(context: Context, output: Path) -> None:
    findings = judge(context.config, Probe.model_validate_json(output.read_text()))
    log = get_run_logger()
    for each in findings:
        log.info("preflight: %s: %s", each.name, each.detail)
    refuse(findings)
