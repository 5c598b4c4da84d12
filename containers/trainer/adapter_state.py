"""The state of LoRA training, sharded: all that a frozen base does not hold already.

With LoRA only the adapter, its optimizer, the schedule and the random numbers change, so only
they are saved: safetensors written by PyTorch's distributed checkpoint, each process its own
shard, and JSON for the rest. Nothing is pickled. A checkpoint may be loaded by another number of
processes than wrote it; the base comes from the model's own folder, whose digest the run holds.
"""

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)

_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Of AdamW, each shaped and sharded as its parameter."""
_TENSORS = "tensors"
_PROGRESS = "progress.json"


class AdapterCheckpoints:
    """Mixed into SkyRL's policy worker: it saves and loads the adapter's state alone.

    SkyRL's own writes all weights, the base included, as pickles of a fixed number of processes.
    """

    model: Any
    optimizer: Any
    scheduler: Any
    strategy: Any

    def save_checkpoint(self, ckpt_dir: str, tokenizer: Any = None) -> None:
        """Write this process's part, and from rank 0 the adapter as PEFT reads it."""
        folder = Path(ckpt_dir)
        folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        save(self.model.model, self.optimizer, self.scheduler, folder)
        self.strategy._save_lora_adapters(self.model.model, ckpt_dir)

    def load_checkpoint(self, ckpt_dir: str, **_: bool) -> None:
        """Read this process's part, whoever wrote it."""
        load(self.model.model, self.optimizer, self.scheduler, Path(ckpt_dir))


def save(model: torch.nn.Module, optimizer: Any, scheduler: Any, folder: Path) -> None:
    """Write `tensors/`, `progress.json` and this process's random numbers below `folder`."""
    parameters = _trainable(model)
    states = [optimizer.state[parameter] for parameter in parameters.values()]
    writer = HuggingFaceStorageWriter(str(folder / _TENSORS), save_distributed=True)
    dcp.save(_tensors(parameters, optimizer), storage_writer=writer)
    if dist.get_rank() == 0:
        progress = {
            "optimizer_steps": int(states[0]["step"]),
            "schedule": scheduler.state_dict(),
        }
        (folder / _PROGRESS).write_text(json.dumps(progress, indent=1) + "\n")
    _random_file(folder).write_text(json.dumps(_random_state()) + "\n")
    dist.barrier()


def load(model: torch.nn.Module, optimizer: Any, scheduler: Any, folder: Path) -> None:
    """Read what `save` wrote, by any number of processes, into place.

    A process that has no counterpart among those that wrote goes on with its own random numbers.
    """
    progress = json.loads((folder / _PROGRESS).read_text())
    parameters = _trainable(model)
    for parameter in parameters.values():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(progress["optimizer_steps"])),
            **{moment: torch.zeros_like(parameter.detach()) for moment in _MOMENTS},
        }
    reader = HuggingFaceStorageReader(str(folder / _TENSORS))
    dcp.load(_tensors(parameters, optimizer), storage_reader=reader)
    scheduler.load_state_dict(progress["schedule"])
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    if _random_file(folder).is_file():
        _restore_random(json.loads(_random_file(folder).read_text()))
    dist.barrier()


def _trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _tensors(parameters: dict[str, torch.nn.Parameter], optimizer: Any) -> dict[str, torch.Tensor]:
    """The sharded tensors under one name each; loading writes into them."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in parameters.items():
        tensors[name] = parameter.detach()
        for moment in _MOMENTS:
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    return tensors


def _random_file(folder: Path) -> Path:
    return folder / f"random_rank_{dist.get_rank()}.json"


def _random_state() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": _encode(torch.get_rng_state()),
        "numpy": [kind, [int(key) for key in keys], *rest],
        "python": [version, list(numbers), gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = _encode(torch.cuda.get_rng_state())
    return state


def _restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(_decode(state["torch"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decode(state["cuda"]))


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
