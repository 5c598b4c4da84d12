"""Adapters on the CPU: one product for each adapter equals vLLM's gather for every token."""

import pkgutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from vllm.lora.ops import torch_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.v1.worker.cpu_worker import CPUWorker

from containers.server.cpu_worker import apply_adapters
from containers.server.launch import SKYRL_SERVER, ServerPlan, command

IN, OUT, ADAPTERS = 12, 20, 3


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def gathered(inputs: Tensor, matrices: Tensor, slots: Tensor) -> Tensor:
    """Each token with a copy of its own adapter's matrix; zero for the base."""
    rows = [
        matrices[slot] @ row if slot >= 0 else torch.zeros(len(matrices[0]))
        for row, slot in zip(inputs, slots.tolist(), strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize(
    "slots",
    [[0] * 7, [2] * 7, [0, 2, 1, 1, 0, 2, 2], [1, -1, 0, -1, 2, 2, -1], [-1] * 7, [1], [-1]],
    ids=str,
)
@pytest.mark.parametrize("has_layer_axis", [False, True])
def test_the_result_equals_a_gather_for_every_token(slots: list[int], has_layer_axis: bool) -> None:
    inputs, matrices = draw(len(slots), IN), draw(ADAPTERS, OUT, IN)
    stacked = matrices.unsqueeze(1) if has_layer_axis else matrices
    result = apply_adapters(inputs, stacked, torch.tensor(slots))
    assert result.shape == (len(slots), OUT)
    torch.testing.assert_close(result, gathered(inputs, matrices, torch.tensor(slots)))


def test_the_base_gets_zeros_in_a_mixed_batch_where_vllm_takes_the_last_adapter() -> None:
    inputs, stacked = draw(3, IN), draw(ADAPTERS, 1, OUT, IN)
    slots = torch.tensor([0, -1, 1])
    theirs = torch.zeros(3, OUT)
    torch_ops.bgmv_shrink(inputs, stacked, theirs, slots)
    torch.testing.assert_close(theirs[1], stacked[-1, 0] @ inputs[1])
    ours = apply_adapters(inputs, stacked, slots)
    assert not ours[1].any()
    torch.testing.assert_close(ours[[0, 2]], theirs[[0, 2]])


SLOTS = torch.tensor([0, 2, 2, 1, 0])
LENGTHS = torch.tensor([2, 1, 3, 1, 2])
PREFILL = (torch.cumsum(LENGTHS, 0) - LENGTHS, LENGTHS, SLOTS, 5, 3, int(LENGTHS.sum()))
"""Starts, lengths and adapters of five sequences, then their number, longest and total length."""


@pytest.mark.parametrize("is_prefill", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shrinking_gives_what_vllm_gives(is_prefill: bool, dtype: torch.dtype) -> None:
    where = PREFILL if is_prefill else (SLOTS,)
    inputs = draw(PREFILL[-1] if is_prefill else len(SLOTS), IN).to(dtype)
    stacked = draw(ADAPTERS, 1, 4, IN).to(dtype)
    name = "sgmv_shrink" if is_prefill else "bgmv_shrink"
    ours, theirs = torch.full((len(inputs), 6), 7.0), torch.full((len(inputs), 6), 7.0)
    getattr(punica_cpu, name)(inputs, stacked, ours, *where, 0.5)
    getattr(torch_ops, name)(inputs, stacked, theirs, *where, 0.5)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("is_prefill", [False, True])
def test_expanding_into_a_slice_gives_what_vllm_gives(is_prefill: bool, adds: bool) -> None:
    where = PREFILL if is_prefill else (SLOTS,)
    inputs = draw(PREFILL[-1] if is_prefill else len(SLOTS), 4)
    stacked = draw(ADAPTERS, 1, OUT, 4)
    name = "sgmv_expand_slice" if is_prefill else "bgmv_expand_slice"
    ours, theirs = draw(len(inputs), 3 * OUT), draw(len(inputs), 3 * OUT)
    getattr(punica_cpu, name)(inputs, stacked, ours, *where, OUT, OUT, adds)
    getattr(torch_ops, name)(inputs, stacked, theirs, *where, OUT, OUT, adds)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("width", [OUT - 3, OUT, OUT + 3])
def test_expanding_pads_or_cuts_as_vllm_does(width: int, adds: bool) -> None:
    inputs, stacked = draw(len(SLOTS), 4), draw(ADAPTERS, 1, OUT, 4)
    ours, theirs = draw(len(SLOTS), width), draw(len(SLOTS), width)
    punica_cpu.bgmv_expand(inputs, stacked, ours, SLOTS, adds)
    torch_ops.bgmv_expand(inputs, stacked, theirs, SLOTS, adds)
    torch.testing.assert_close(ours, theirs)


def test_the_worker_that_the_server_is_told_to_start_uses_these_functions() -> None:
    plan = ServerPlan(
        module=SKYRL_SERVER,
        model=Path("model"),
        served_name="base",
        listen=8000,
        device="cpu",
        dtype="float32",
        max_model_len=128,
        max_num_seqs=1,
        lora_rank=4,
        max_images=1,
    )
    arguments = command(plan)
    name = arguments[arguments.index("--worker-cls") + 1]
    assert issubclass(pkgutil.resolve_name(name), CPUWorker)
    for name in ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice", "sgmv_shrink"):
        assert getattr(punica_cpu, name).__module__ == apply_adapters.__module__
