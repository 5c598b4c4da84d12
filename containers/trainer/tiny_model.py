"""The tiny stand-in model: a real Qwen3-VL architecture, small enough for two CPU cores.

Everything a checkpoint of Qwen3-VL has is here (text and vision configs, deepstack, M-RoPE
sections, a byte-level BPE, a chat template, the image processor), at about a thousandth of the
width, so transformers, PEFT, SkyRL and vLLM load it by the same code as the 8 B model.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from containers.trainer.conversation import FEEDBACK, RULES

PATCH_PX, MERGE, VOCABULARY = 16, 2, 512
FRAME_MULTIPLE_PX = PATCH_PX * MERGE

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

ACTIONS = (*(f"('move', {direction})" for direction in range(4)), "('stop', 'stop')")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type in ('image', 'image_url') -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Qwen's turns: every message only appends, so a longer conversation starts with a shorter one."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the conversation's own texts.

    Any text can be written (all 256 bytes are in the alphabet). Words are not split before
    merging, so a common action becomes one or two tokens, as frequent words do in a large
    vocabulary.
    """
    rules = [RULES.format(height=size, width=size) for size in (7, 9, 11)]
    corpus = rules * 20 + [*FEEDBACK.values(), *ACTIONS] * 400
    corpus += ["user\n", "assistant\n", "system\n"] * 400
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def make_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLProcessor:
    """Tokenizer, image processor and chat template as one saved processor."""
    pixels = {"shortest_edge": FRAME_MULTIPLE_PX**2, "longest_edge": 1024**2}
    geometry = {"patch_size": PATCH_PX, "merge_size": MERGE, "temporal_patch_size": 2}
    normal = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=pixels, **geometry, **normal),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(size=pixels, **geometry, **normal),
        chat_template=CHAT_TEMPLATE,
    )


def make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLConfig:
    """Sizes of the tiny model; token ids from the tokenizer."""
    token = tokenizer.convert_tokens_to_ids
    return Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": PATCH_PX,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": 128,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def make_model(config: Qwen3VLConfig, seed: int) -> Qwen3VLForConditionalGeneration:
    """An untrained model in float32."""
    torch.manual_seed(seed)
    return Qwen3VLForConditionalGeneration(config).float()


def save_checkpoint(
    model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, folder: Path
) -> None:
    """Write a complete checkpoint that AutoProcessor and vLLM load without network."""
    eos = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config.eos_token_id = eos
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    AutoProcessor.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
