"""Do the batches of a profile divide among its GPUs? SkyRL asks the same, but on the cluster."""

from math import gcd

from configs.schema import PostTrainConfig, TrainConfig
from tasks.preflight.findings import Finding


def batch_arithmetic(config: PostTrainConfig) -> Finding:
    """Mazes of a step and of a mini batch against processes, group size and micro batch."""
    train = config.train
    fault = _fault(config)
    return Finding(
        name="batch arithmetic",
        ok=not fault,
        detail=fault or _well(train),
        fix=_fix(config) if fault else "",
    )


def _fault(config: PostTrainConfig) -> str:
    train = config.train
    on_gpus = train.device == "cuda"
    if on_gpus and train.num_processes % config.cluster.gpus_per_worker:
        return (
            f"{train.num_processes} processes do not fill workers of "
            f"{config.cluster.gpus_per_worker} GPUs"
        )
    for what, mazes in (("step", train.mazes_per_step), ("mini batch", train.mini_batch_mazes)):
        if mazes * train.samples_per_maze % train.num_processes:
            return (
                f"{mazes} mazes of {train.samples_per_maze} samples in a {what} do not divide "
                f"among {train.num_processes} processes"
            )
    if train.mazes_per_step % train.mini_batch_mazes:
        return f"a step of {train.mazes_per_step} mazes is no multiple of {train.mini_batch_mazes}"
    if _episodes(train) % train.micro_batch_episodes:
        return (
            f"{_episodes(train)} episodes of a mini batch in each process are no multiple of "
            f"{train.micro_batch_episodes}"
        )
    return ""


def _episodes(train: TrainConfig) -> int:
    """Of a mini batch, in one process."""
    return train.mini_batch_mazes * train.samples_per_maze // train.num_processes


def _well(train: TrainConfig) -> str:
    return (
        f"{train.mazes_per_step} mazes of {train.samples_per_maze} samples a step, mini batches of "
        f"{train.mini_batch_mazes}: {_episodes(train)} episodes for each of "
        f"{train.num_processes} processes, {train.micro_batch_episodes} at a time"
    )


def _fix(config: PostTrainConfig) -> str:
    """The largest batches below those that were asked for which divide."""
    train, per_worker = config.train, config.cluster.gpus_per_worker
    if train.device == "cuda" and train.num_processes % per_worker:
        return f"make train.num_processes a multiple of {per_worker}"
    all_of_it = train.num_processes * train.micro_batch_episodes
    unit = all_of_it // gcd(all_of_it, train.samples_per_maze)
    mini = max(unit, train.mini_batch_mazes // unit * unit)
    step = max(mini, train.mazes_per_step // mini * mini)
    return f"try train.mazes_per_step = {step} and train.mini_batch_mazes = {mini}"
