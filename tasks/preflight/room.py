"""Is there room: on the disk for the checkpoints, in the RAM of a worker for sleeping engines?"""

import math
import shutil
from pathlib import Path

from configs.schema import PostTrainConfig
from tasks.check import checkpoint_bytes, read_shapes
from tasks.preflight.findings import Finding

_RESERVE_GB = 16
"""For the processes themselves: Python, CUDA's host side, data on its way."""


def disk(config: PostTrainConfig, folder: Path, num_kept: int) -> Finding:
    """Room for the checkpoints to keep, the best one and the one being written.

    `folder` is where they go or a folder above it, `num_kept` how many lie there already.
    """
    missing = config.train.keep_checkpoints + 2 - num_kept
    needed = max(missing, 1) * checkpoint_bytes(config)
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    return Finding(
        name="disk",
        ok=free >= needed,
        detail=f"the planned checkpoints need {needed / 1e9:.1f} GB and {there} has "
        f"{free / 1e9:.1f} GB free",
        fix="make room, or lower train.keep_checkpoints",
    )


def host_memory(config: PostTrainConfig) -> Finding | None:
    """What a worker holds in RAM while its engines sleep; None where it has no pod of its own."""
    kuberay = config.cluster.kuberay
    if kuberay is None or config.train.device != "cuda":
        return None
    needed, given = memory_needed_gb(config), float(kuberay.worker.memory_gb)
    return Finding(
        name="host memory",
        ok=given >= needed,
        detail=f"a worker needs {needed:.0f} GB (sleeping engines, offloaded weights, shared "
        f"memory) and its pod has {given:.0f} GB",
        fix=f"give cluster.kuberay.worker.memory_gb = {math.ceil(needed)} or fewer GPUs a worker",
    )


def memory_needed_gb(config: PostTrainConfig) -> float:
    """Of one worker: a bfloat16 base for each engine, since engines with adapters sleep with
    their weights in RAM; its part of the float32 base and of the adapter's state; /dev/shm."""
    gpus = config.cluster.gpus_per_worker
    weights = sum(math.prod(shape) for shape in read_shapes(config.model.path).values())
    share = gpus / config.train.num_processes
    engines = gpus * 2 * weights
    offloaded = share * (4 * weights + checkpoint_bytes(config))
    kuberay = config.cluster.kuberay
    shared = kuberay.worker.shared_memory_gb if kuberay else 0
    return (engines + offloaded) / 2**30 + shared + _RESERVE_GB
