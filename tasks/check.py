"""What a run will ask for: the job of an attempt, and the size of its checkpoints."""

import json
import re
from pathlib import Path

from configs.jobs import TrainJob
from configs.schema import PostTrainConfig
from tasks.run_dir import Run


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
