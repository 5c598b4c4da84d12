"""The state of LoRA training is small, and another number of processes may go on from it."""

import json
import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open

HIDDEN, RANK, ROWS = 24, 4, 8


def build() -> tuple[torch.nn.Module, Any, Any]:
    """A base with LoRA, sharded over all processes as SkyRL shards it."""
    from peft import LoraConfig, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import get_scheduler

    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(HIDDEN, 512), torch.nn.Linear(512, HIDDEN))
    model = get_peft_model(base, LoraConfig(r=RANK, target_modules=["0", "1"]))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=9)
    return model, optimizer, scheduler


def step(model: Any, optimizer: Any, scheduler: Any, number: int) -> float:
    """One optimizer step on batch `number`, split over the processes; the mean loss of all."""
    batch = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(number))
    part = batch.chunk(dist.get_world_size())[dist.get_rank()]
    loss = (model(part) - part).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def write(folder: Path) -> list[float]:
    """Three steps, a checkpoint, and what comes after it: two losses and a random number."""
    from containers.trainer.adapter_state import save

    parts = build()
    for number in range(3):
        step(*parts, number)
    save(*parts, folder)
    drawn = float(torch.rand(()))
    return [step(*parts, number) for number in (3, 4)] + [drawn]


def go_on(folder: Path) -> list[float]:
    """The same from the checkpoint on, in a process that has another past."""
    from containers.trainer.adapter_state import load

    parts = build()
    torch.rand(5)
    load(*parts, folder)
    drawn = float(torch.rand(()))
    assert parts[1].param_groups[0]["lr"] == pytest.approx(0.02 * 6 / 9)
    return [step(*parts, number) for number in (3, 4)] + [drawn]


def _member(acts: list[tuple[str, Path]], rank: int, size: int, port: int, out: Any) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    values = [{"write": write, "go on": go_on}[act](folder) for act, folder in acts]
    if rank == 0:
        out.put(values)
    dist.destroy_process_group()
    # Past its last line a process of PyTorch may abort: a thread of gloo that lets go of its last
    # tensor wants an interpreter that is already ending. Ray's workers leave like this as well.
    os._exit(0)


def together(acts: list[tuple[str, Path]], size: int) -> list[list[float]]:
    """Let `size` processes that form a group do the acts; what the first of them returns."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    members = [
        context.Process(target=_member, args=(acts, rank, size, port, out)) for rank in range(size)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join(120)
    assert [member.exitcode for member in members] == [0] * size
    return out.get()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("state")
    return {1: root / "of-1", 2: root / "of-2"}


@pytest.fixture(scope="module")
def seen(folders: dict[int, Path]) -> dict[tuple[int, int], list[float]]:
    """What followed the checkpoint: (size, 0) seen by its writers, (size, n) by n that went on."""
    for folder in folders.values():
        folder.mkdir()
    (wrote_2,) = together([("write", folders[2])], 2)
    wrote_1, one_1, two_1 = together(
        [("write", folders[1]), ("go on", folders[1]), ("go on", folders[2])], 1
    )
    one_2, two_2 = together([("go on", folders[1]), ("go on", folders[2])], 2)
    return {
        (1, 0): wrote_1,
        (2, 0): wrote_2,
        (1, 1): one_1,
        (2, 1): two_1,
        (1, 2): one_2,
        (2, 2): two_2,
    }


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_another_number_of_processes_goes_on_as_if_nothing_had_happened(
    seen: dict[tuple[int, int], list[float]], before: int, after: int
) -> None:
    assert seen[before, after] == pytest.approx(seen[before, 0], abs=1e-6)


def test_the_state_holds_the_adapter_and_its_optimizer_without_the_base(
    folders: dict[int, Path], seen: dict[tuple[int, int], list[float]]
) -> None:
    folder = folders[2]
    files = sorted((folder / "tensors").glob("*.safetensors"))
    assert len(files) == 2, "each process writes its own shard"
    names: set[str] = set()
    for file in files:
        with safe_open(file, "pt") as tensors:
            names |= set(tensors.keys())
    parameters = {name for name in names if not name.startswith("exp_avg")}
    assert len(parameters) == 4 and all("lora_" in name for name in parameters)
    assert len(names) == 3 * len(parameters)
    assert json.loads((folder / "progress.json").read_text())["optimizer_steps"] == 3
    assert not list(folder.rglob("*.pt")) and not list(folder.rglob(".metadata"))
