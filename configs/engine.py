"""How vLLM's engine is set up, whichever program starts it."""

from typing import Any, Literal

CPU_BLOCK_TOKENS = 32
"""Block of the prefix cache on a CPU. Its default of 128 finds no common prefix in short talks."""


def engine_options(
    *,
    device: Literal["cpu", "cuda"],
    dtype: str,
    max_model_len: int,
    max_num_seqs: int,
    max_images: int,
    lora_rank: int,
    max_adapters: int,
) -> dict[str, Any]:
    """Names and values of vLLM, the same in every server: what was measured is what is served."""
    options = {
        "dtype": dtype,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "limit_mm_per_prompt": {"image": max_images, "video": 0},
        "enable_lora": True,
        "max_lora_rank": lora_rank,
        "max_loras": max_adapters,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
    }
    if device == "cpu":
        options |= {
            "worker_cls": "containers.server.cpu_worker.AriadneCpuWorker",
            "enforce_eager": True,
            "block_size": CPU_BLOCK_TOKENS,
        }
    return options
