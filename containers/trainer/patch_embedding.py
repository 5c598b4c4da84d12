"""Qwen3-VL's patch embedding as one matrix product, which is what its convolution computes.

The kernel is as large as its stride, so each patch meets the weights once. As a three-dimensional
convolution in bfloat16 it was measured tens of thousands of times slower on Blackwell GPUs.
"""

import time
from typing import Any

import torch
from torch.nn.functional import linear
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionPatchEmbed

_WARM_UPS = 2
_ROUNDS = 5


def embed_patches(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """(patches, channels * frames * height * width) -> (patches, hidden size)."""
    weight = self.proj.weight
    patches = hidden_states.view(-1, weight[0].numel()).to(weight.dtype)
    return linear(patches, weight.flatten(1), self.proj.bias)


def install() -> None:
    """For every model of this process, those that are there already included."""
    Qwen3VLVisionPatchEmbed.forward = embed_patches  # type: ignore[method-assign]


def time_frame_ms(config: Any, num_patches: int, device: str) -> float:
    """Milliseconds of a forward and backward pass of one frame, the median of a few.

    `config` is the vision part of a Qwen3-VL configuration; `num_patches` are the frame's.
    """
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    embed = Qwen3VLVisionPatchEmbed(config).to(device, dtype)
    size = embed.proj.weight[0].numel()
    frame = torch.randn(num_patches, size, device=device, dtype=dtype, requires_grad=True)
    took = []
    for _ in range(_WARM_UPS + _ROUNDS):
        _settle(device)
        began = time.perf_counter()
        embed(frame).sum().backward()
        _settle(device)
        took.append(1000 * (time.perf_counter() - began))
    return sorted(took[_WARM_UPS:])[_ROUNDS // 2]


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
