"""The training job: go on from the newest complete checkpoint until the last step is done.

    python -m containers.trainer.train_main JOB.json

It may be killed at any moment and started again with the next attempt number.
"""

import fcntl
import os
import sys
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from loguru import logger

from configs.jobs import TrainJob
from configs.mazes import load_maze_set
from configs.serving import BASE_NAME
from containers.server.launch import SKYRL_SERVER, ServerPlan
from containers.trainer import adapters, checkpoints
from containers.trainer.fence import Fence
from containers.trainer.inference import StartingServer, free_port, starting_server
from containers.trainer.notice import Notice
from containers.trainer.rows import write_rows

_WRITER_TIMEOUT_S = 60
"""For an older attempt to notice that it has a successor, or to be gone."""
_POLL_S = 0.5


def main() -> None:
    """Read the job and train."""
    job = TrainJob.read(Path(sys.argv[1]))
    for folder in (job.checkpoints, job.adapters, job.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    with alone(job.checkpoints):
        Fence(job.attempts, job.attempt).check()
        go_on(job)


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """Let one process at a time write this run: an attempt thought lost may still be alive."""
    deadline = time.monotonic() + _WRITER_TIMEOUT_S
    with (folder / ".writer").open("w") as file:
        while not _lock(file):
            if time.monotonic() > deadline:
                sys.exit("Error: another attempt still writes this run: end it, then start again")
            time.sleep(_POLL_S)
        yield


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def go_on(job: TrainJob) -> None:
    """Train from the newest complete checkpoint, if anything is left to train."""
    resume = checkpoints.newest(job.checkpoints)
    checkpoints.drop_newer(job.checkpoints, resume)
    adapters.drop_newer(job.adapters, checkpoints.step_of(resume) if resume else 0)
    if resume:  # the attempt that wrote it may have ended before its adapter was out
        adapters.publish(resume, checkpoints.step_of(resume), job)
    if resume and checkpoints.step_of(resume) >= job.config.train.steps:
        logger.info(f"{resume.name} is the last step: nothing left to train")
        return
    logger.info(f"attempt {job.attempt} starts from {resume.name if resume else 'the base'}")
    train(job, resume)


def train(job: TrainJob, resume: Path | None) -> None:
    """Train from `resume` to the last step.

    The server starts while SkyRL is imported and its workers start: each takes half a minute.
    """
    rows = job.scratch / "rows.jsonl"
    write_rows(job.config, load_maze_set(job.config.mazes.test_set), rows)
    with rollout_server(job) as server:
        if job.config.train.device == "cpu":
            import containers.trainer.cpu_device  # noqa: F401  before SkyRL
        from skyrl.train.utils import validate_cfg
        from skyrl.train.utils.utils import initialize_ray

        from containers.trainer.experiment import MazeExperiment
        from containers.trainer.maze_env import register
        from containers.trainer.skyrl_config import translate

        register(job.config)
        cfg = translate(job, rows, server.url if server else None, resume)
        validate_cfg(cfg)
        # SkyRL hands its workers the driver's variables; these two let it, inside a Ray job.
        os.environ |= {"SKYRL_PYTHONPATH_EXPORT": "1", "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
        initialize_ray(cfg)
        notice = Notice()
        notice.listen()
        MazeExperiment(cfg, job, resume, server, notice).run()


def rollout_server(job: TrainJob) -> AbstractContextManager[StartingServer | None]:
    """On a CPU, the server that plays the training episodes; on GPUs SkyRL brings its own."""
    if job.config.train.device == "cuda":
        return nullcontext()
    plan = server_plan(job)
    # For those who scrape its metrics.
    (job.scratch / "inference-server.address").write_text(f"127.0.0.1:{plan.listen}\n")
    return starting_server(plan, job.scratch / "inference-server.log")


def server_plan(job: TrainJob) -> ServerPlan:
    """The server of an attempt."""
    config = job.config
    return ServerPlan(
        module=SKYRL_SERVER,
        model=config.model.path,
        served_name=BASE_NAME,
        listen=free_port(),
        device="cpu",
        dtype="float32",
        max_model_len=config.model.max_model_len,
        max_num_seqs=config.train.rollout_concurrency,
        lora_rank=config.train.lora.rank,
        max_images=config.mazes.max_turns,
        kv_cache_gb=config.train.kv_cache_gb,
    )


if __name__ == "__main__":
    main()
