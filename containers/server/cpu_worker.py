"""vLLM's CPU worker with adapters applied by one matrix product for each adapter.

vLLM 0.30 gathers a copy of the adapter's matrices for every single token of a batch on the CPU:
70 % of the worker's time with the tiny model (py-spy, 2 cores). It also reads index -1, which
stands for the base, as the last slot, so in a mixed batch the base would answer with an adapter.

Given as --worker-cls, so the engine's worker process imports this module and is patched.
"""

import torch
from torch import Tensor
from vllm.lora.punica_wrapper import punica_cpu
from vllm.v1.worker.cpu_worker import CPUWorker


def apply_adapters(inputs: Tensor, stacked: Tensor, slots: Tensor) -> Tensor:
    """Multiply each row of `inputs` (tokens, in) with its adapter's matrix.

    `stacked` is (adapters, out, in) or (adapters, 1, out, in); `slots` (tokens,) names the
    adapter of each token, -1 for none, whose result is zero. Returns (tokens, out).
    """
    matrices = stacked.squeeze(1) if stacked.dim() == 4 else stacked
    present = slots.unique().tolist()
    if len(present) == 1 and present[0] >= 0:
        return inputs @ matrices[present[0]].T
    outputs = inputs.new_zeros(inputs.shape[0], matrices.shape[1])
    for slot in present:
        if slot >= 0:
            rows = slots == slot
            outputs[rows] = inputs[rows] @ matrices[slot].T
    return outputs


def _shrink(
    inputs: Tensor, weights: Tensor, output: Tensor, slots: Tensor, scaling: float = 1.0
) -> None:
    result = apply_adapters(inputs.to(output.dtype), weights.to(output.dtype), slots)
    output[:, : result.shape[1]] = scaling * result


def _expand_slice(
    inputs: Tensor,
    weights: Tensor,
    output: Tensor,
    slots: Tensor,
    offset: int,
    size: int,
    add_inputs: bool = True,
) -> None:
    result = apply_adapters(inputs.to(output.dtype), weights.to(output.dtype), slots)
    place = output[:, offset : offset + size]
    place.add_(result) if add_inputs else place.copy_(result)


def _expand(
    inputs: Tensor, weights: Tensor, output: Tensor, slots: Tensor, add_inputs: bool = True
) -> None:
    width = min(weights.shape[-2], output.shape[1])
    _expand_slice(inputs, weights[..., :width, :], output, slots, 0, width, add_inputs)


def _slot_of_each_token(slots: Tensor, lengths: Tensor) -> Tensor:
    return torch.repeat_interleave(slots, lengths)


def _shrink_prefill(
    inputs: Tensor,
    weights: Tensor,
    output: Tensor,
    _starts: Tensor,
    lengths: Tensor,
    slots: Tensor,
    _batches: int,
    _longest: int,
    _tokens: int,
    scaling: float,
) -> None:
    _shrink(inputs, weights, output, _slot_of_each_token(slots, lengths), scaling)


def _expand_slice_prefill(
    inputs: Tensor,
    weights: Tensor,
    output: Tensor,
    _starts: Tensor,
    lengths: Tensor,
    slots: Tensor,
    _batches: int,
    _longest: int,
    _tokens: int,
    offset: int,
    size: int,
    add_inputs: bool = False,
) -> None:
    of_token = _slot_of_each_token(slots, lengths)
    _expand_slice(inputs, weights, output, of_token, offset, size, add_inputs)


punica_cpu.bgmv_shrink = _shrink
punica_cpu.bgmv_expand = _expand
punica_cpu.bgmv_expand_slice = _expand_slice
punica_cpu.sgmv_shrink = _shrink_prefill
punica_cpu.sgmv_expand_slice = _expand_slice_prefill


class AriadneCpuWorker(CPUWorker):
    """vLLM's CPU worker, in a process where the functions above are in place."""
