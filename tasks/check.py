"""Ask before anything costs: does SkyRL take the configuration, is there room for checkpoints?"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from configs.jobs import TrainJob
from configs.schema import PostTrainConfig
from tasks.backends.protocols import Image
from tasks.context import Context
from tasks.jobs import job_environment, program
from tasks.run_dir import Run

_TIMEOUT_S = 300


@task(task_run_name="check", cache_policy=NO_CACHE)
def check_plan(context: Context, image: Image) -> None:
    """Refuse what would fail later.

    Raises:
        ValueError: one line with the reason and the next move.
    """
    check_key(context.config)
    check_disk(context.run)
    job = train_job(context.run, attempt=1)
    file = job.write(context.run.scratch("check") / "job.json")
    done = subprocess.run(
        program(image, "containers.trainer.check_main", file),
        cwd=image.app,  # Python looks for modules in its directory first
        env={**os.environ, **job_environment(image)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().split("\n")[-1])


def check_key(config: PostTrainConfig) -> None:
    """An endpoint on a network asks for a key, and hosting has to pass it.

    Raises:
        ValueError: it is not in this environment.
    """
    if config.host.pod and not os.environ.get("VLLM_API_KEY"):
        raise ValueError(
            f"set VLLM_API_KEY to the key of the Secret {config.host.pod.key_secret}: the endpoint "
            "is open to the network"
        )


def check_disk(run: Run) -> None:
    """Room for the checkpoints to keep, the best one and the one being written.

    Raises:
        ValueError: there is less; says how much is needed.
    """
    missing = run.config.train.keep_checkpoints + 2 - run.num_checkpoints()
    needed = max(missing, 1) * checkpoint_bytes(run.config)
    free = shutil.disk_usage(run.folder).free
    if free < needed:
        raise ValueError(
            f"the planned checkpoints need {needed / 1e9:.1f} GB and {run.folder} has "
            f"{free / 1e9:.1f} GB free: make room, or lower train.keep_checkpoints"
        )


def checkpoint_bytes(config: PostTrainConfig) -> int:
    """Size of a checkpoint: the adapter in float32, its two moments, and the copy for PEFT."""
    lora = config.train.lora
    linears = [
        shape
        for name, shape in read_shapes(config.model.path).items()
        if len(shape) == 2
        and not re.search(r"embed|lm_head", name)
        and not re.fullmatch(lora.exclude_modules, name.removesuffix(".weight"))
    ]
    num_parameters = sum(lora.rank * sum(shape) for shape in linears)
    return 4 * 4 * num_parameters


def read_shapes(model: Path) -> dict[str, list[int]]:
    """Shape of each tensor of a checkpoint, from the headers of its files."""
    shapes: dict[str, list[int]] = {}
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name[0] != "_"}
    return shapes


def train_job(
    run: Run,
    attempt: int,
    micro_batch_episodes: int | None = None,
    num_processes: int | None = None,
) -> TrainJob:
    """The job description of an attempt; a smaller micro batch than the run's needs less memory
    and fewer processes fewer machines, for the same result."""
    config = run.config
    changes = {"micro_batch_episodes": micro_batch_episodes, "num_processes": num_processes}
    given = {key: value for key, value in changes.items() if value}
    config = config.model_copy(update={"train": config.train.model_copy(update=given)})
    return TrainJob(
        run_id=run.run_id,
        attempt=attempt,
        config=config,
        base_digest=run.file.base_digest,
        checkpoints=run.checkpoints,
        adapters=run.adapters,
        metrics=run.metrics,
        attempts=run.attempts,
        scratch=run.scratch(f"attempt-{attempt}"),
    )
