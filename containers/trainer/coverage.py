"""Which modules the trainer adapts, and which of their adapters the inference server applies.

Both are told from the base model's config alone: the modules by making the model without memory
for its weights, as PEFT picks them; the server's by the rules that vLLM loads adapters by.
"""

from pathlib import Path

import torch
from peft import LoraConfig as PeftConfig
from peft import TaskType, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig, AutoModelForImageTextToText
from vllm.lora.utils import parse_fine_tuned_lora_name
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration

from configs.schema import LoraConfig


def adapted_modules(model: Path, lora: LoraConfig) -> list[str]:
    """Names of the tensors' modules as the trainer writes them, `base_model.model.` before each."""
    with torch.device("meta"):
        base = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(model))
        settings = PeftConfig(
            task_type=TaskType.CAUSAL_LM,
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules="all-linear",
            exclude_modules=lora.exclude_modules,
        )
        adapted = get_peft_model(base, settings)
    return [name for name, module in adapted.named_modules() if isinstance(module, LoraLayer)]


def not_served(modules: list[str]) -> list[str]:
    """Those whose adapters vLLM ignores: it wraps the linear layers of the language model."""
    mapping = Qwen3VLForConditionalGeneration.get_mm_mapping(None)  # ty: ignore[invalid-argument-type]
    (language,) = mapping.language_model
    return [name for name in modules if not _place(name).startswith(f"{language}.")]


def _place(module: str) -> str:
    """Where vLLM looks for the module."""
    mapper = Qwen3VLForConditionalGeneration.hf_to_vllm_mapper
    return parse_fine_tuned_lora_name(f"{module}.lora_A.weight", mapper)[0]
