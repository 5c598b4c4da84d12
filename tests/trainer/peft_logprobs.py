"""What PEFT makes of an answer that a server gave: the log-probability of each of its tokens.

python -m tests.trainer.peft_logprobs BASE ADAPTER REQUEST.json TOKEN...

REQUEST.json holds the chat messages, TOKEN... the ids of the answer. Prints a JSON list, in nats.
"""

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor


def for_processor(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its pictures opened."""
    parts = [
        {"type": "image", "image": opened(part["image_url"]["url"])}
        if part["type"] == "image_url"
        else part
        for part in message["content"]
    ]
    return {"role": message["role"], "content": parts}


def opened(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")


def main() -> None:
    """Read the command line, compute and print."""
    base, adapter, request, *tokens = sys.argv[1:]
    processor = AutoProcessor.from_pretrained(base)
    model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).eval()
    messages = json.loads(Path(request).read_text())["messages"]
    prompt = processor.apply_chat_template(
        [for_processor(message) for message in messages],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    answer = torch.tensor([[int(token) for token in tokens]])
    length = prompt["input_ids"].shape[1]
    prompt["input_ids"] = torch.cat([prompt["input_ids"], answer], 1)
    prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
    if "mm_token_type_ids" in prompt:
        text = torch.zeros_like(answer)
        prompt["mm_token_type_ids"] = torch.cat([prompt["mm_token_type_ids"], text], 1)
    with torch.no_grad():
        logits = model(**prompt).logits[0, length - 1 : -1]
    chosen = logits.float().log_softmax(-1).gather(1, answer[0, :, None])
    sys.stdout.write(json.dumps(chosen[:, 0].tolist()) + "\n")


if __name__ == "__main__":
    main()
