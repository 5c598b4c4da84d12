"""The CPU as SkyRL's device: import this module before anything of SkyRL.

SkyRL 0.4 speaks to torch.cuda directly in the few places below. Here they mean the CPU, in the
driver and in every worker (which import this module to find their class). Everything else of
the training is the code that runs on GPUs. Only a run with `train.device = "cpu"` imports this.
"""

import sys
import types
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import ray
import torch
import torch._dynamo  # indexes the functions of torch.cuda, so it must see the originals
import torch.distributed
import torch.distributed.device_mesh as device_mesh

from containers.trainer.adapter_state import AdapterCheckpoints

_CPU = torch.device("cpu")


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for calls that only make sense with a GPU."""


def _present_cpu() -> None:
    torch.cuda.current_device = lambda: _CPU  # type: ignore[assignment]
    torch.cuda.set_device = _nothing
    torch.cuda.synchronize = _nothing
    torch.cuda.empty_cache = _nothing
    torch.cuda.device_count = lambda: 1
    torch.cuda.mem_get_info = lambda *_: (0, 0)  # type: ignore[assignment]
    make_mesh = device_mesh.init_device_mesh

    def init_cpu_mesh(_: str, *args: Any, **kwargs: Any) -> device_mesh.DeviceMesh:
        return make_mesh("cpu", *args, **kwargs)

    device_mesh.init_device_mesh = init_cpu_mesh
    warnings.filterwarnings("ignore", message="User provided device_type of 'cuda'")


@contextmanager
def _flash_attention_imports() -> Generator[None]:
    """Let SkyRL import two functions of flash-attention at module level; without padding removal
    (trainer.remove_microbatch_padding=false) they are never called. Transformers looks for the
    package too and must not find it, so it looks first and the stand-in goes away again."""
    import_module("transformers.integrations.flash_attention")
    package, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    padding.pad_input = padding.unpad_input = _nothing  # type: ignore[attr-defined]
    sys.modules |= {"flash_attn": package, "flash_attn.bert_padding": padding}
    try:
        yield
    finally:
        del sys.modules["flash_attn"], sys.modules["flash_attn.bert_padding"]


def _broadcast_buffers(model: torch.nn.Module, _: dict[str, Any]) -> None:
    """Give every process rank 0's buffers that no state dict holds, as fsdp_utils does on GPUs."""
    for module in model.modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers.get(name)
            if buffer is not None:
                buffer = torch.empty_like(buffer, device=_CPU) if buffer.is_meta else buffer
                torch.distributed.broadcast(buffer, src=0)
                module._buffers[name] = buffer


_present_cpu()
with _flash_attention_imports():
    from skyrl.backends.skyrl_train.distributed import fsdp_utils
    from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import (
        FSDPPolicyWorkerBase,
        FSDPRefWorkerBase,
    )

fsdp_utils._sync_non_persistent_buffers = _broadcast_buffers


class _OnCpu:
    """What both kinds of worker do differently without a GPU."""

    def init_worker_process_group(self) -> None:
        """Join over gloo; the parent finds the group initialised and only adds its mesh."""
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(backend="gloo")
        super().init_worker_process_group()  # type: ignore[misc]

    async def init_weight_sync_state(self, inference_engine_client: Any, _: Any) -> None:
        """Remember the client. The parent would meet the server over NCCL, which adapters on
        disk do not need."""
        self._weight_sync_inference_client = inference_engine_client


class CpuPolicyWorkerBase(_OnCpu, AdapterCheckpoints, FSDPPolicyWorkerBase):
    pass


class CpuRefWorkerBase(_OnCpu, FSDPRefWorkerBase):
    pass


PolicyWorker = ray.remote(num_gpus=1)(CpuPolicyWorkerBase)
RefWorker = ray.remote(num_gpus=1)(CpuRefWorkerBase)
