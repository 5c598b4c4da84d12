"""An inference server without a model: it renders with the real processor and answers a script.

As strict as vLLM about what it is sent, and about pictures without pixels: those it takes only
where an earlier prompt of the session left the whole picture in full blocks of the prefix cache.
"""

import base64
import hashlib
import io
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from vllm.entrypoints.scale_out.token_in_token_out.mm_features import (
    extract_mm_features,
    mm_kwargs_from_features,
)
from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import decode_mm_kwargs_item
from vllm.entrypoints.scale_out.token_in_token_out.protocol import MultiModalFeatures
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

BLOCK = 32
"""Tokens in a block of the prefix cache."""


class StandInServer:
    """What SkyRL's generators need of `RemoteInferenceClient`.

    Every session hears the answers of `script` in turn. `requests` and `renderings` keep what
    was asked for.
    """

    model_name = "base"

    def __init__(self, processor: Any, script: Sequence[Sequence[int]]) -> None:
        self.processor = processor
        self.image_token: int = processor.image_token_id
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.renderings: list[list[dict[str, Any]]] = []
        self.finished: list[str] = []
        self._prompts: defaultdict[str, list[list[int]]] = defaultdict(list)

    async def render_chat_completion(self, payload: dict[str, Any]) -> dict[str, Any]:
        request = payload["json"]
        assert request["model"] == self.model_name
        self.renderings.append(request["messages"])
        return self.render(request["messages"], request.get("add_generation_prompt", True))

    def render(self, messages: list[dict[str, Any]], opens_answer: bool = True) -> dict[str, Any]:
        """The answer of vLLM's render endpoint."""
        text = self.processor.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opens_answer
        )
        pictures = [_decode(url) for url in _picture_urls(messages)]
        inputs = self.processor(text=[text], images=pictures or None, return_tensors="pt")
        ids = inputs["input_ids"][0].tolist()
        if not pictures:
            return {"token_ids": ids, "features": None}
        patches = inputs["image_grid_thw"].prod(-1)
        kwargs = MultiModalKwargsItems.from_hf_inputs(
            inputs,
            {
                "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", patches),
                "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
            },
        )
        hashes = [hashlib.sha256(picture.tobytes()).hexdigest() for picture in pictures]
        features = extract_mm_features(
            {
                "type": "multimodal",
                "prompt_token_ids": ids,
                "mm_hashes": {"image": hashes},
                "mm_placeholders": {"image": [PlaceholderRange(*run) for run in self.runs(ids)]},
                "mm_kwargs": kwargs,
            }
        )
        assert features is not None
        return {"token_ids": ids, "features": features.model_dump(mode="json")}

    def runs(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Offset and length of each run of image tokens."""
        starts = [
            place
            for place, token in enumerate(ids)
            if token == self.image_token and (place == 0 or ids[place - 1] != self.image_token)
        ]
        return [
            (start, next((n for n, t in enumerate(ids[start:]) if t != self.image_token)))
            for start in starts
        ]

    async def generate(self, request: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """The next answer of the script, with a different log-probability for every token."""
        (ids,), (session,) = request["prompt_token_ids"], request["session_ids"]
        self._check(list(ids), request["mm_features"], self._prompts[session])
        self.requests.append({"ids": list(ids), "features": request["mm_features"]} | request)
        answer = list(self.script[len(self._prompts[session])])
        self._prompts[session].append(list(ids))
        return {
            "responses": [self.processor.tokenizer.decode(answer, skip_special_tokens=True)],
            "response_ids": [answer],
            "stop_reasons": ["stop"],
            "response_logprobs": [[-0.1 * (place + 1) for place in range(len(answer))]],
        }

    def _check(self, ids: list[int], sent: Any, earlier: list[list[int]]) -> None:
        (features,) = map(MultiModalFeatures.model_validate, sent)
        cached = max((_full_blocks(ids, prompt) for prompt in earlier), default=0)
        items = mm_kwargs_from_features(features)["image"]
        for place, item in zip(features.mm_placeholders["image"], items, strict=True):
            end = place.offset + place.length
            assert end <= len(ids), "a placeholder lies behind the prompt"
            assert item is not None and "image_grid_thw" in item, "a picture without its grid"
            assert "pixel_values" in item or end <= cached, "a picture the server has not seen"

    async def finish_session(self, session: str) -> None:
        self.finished.append(session)
        del self._prompts[session]


def pixels_of(data: str) -> torch.Tensor | None:
    """The pixels in one entry of kwargs_data, if it has any."""
    return decode_mm_kwargs_item(data).get_data().get("pixel_values")


def _full_blocks(ids: list[int], earlier: list[int]) -> int:
    """Tokens in full blocks that both prompts begin with."""
    common = next(
        (n for n, (a, b) in enumerate(zip(ids, earlier, strict=False)) if a != b),
        min(len(ids), len(earlier)),
    )
    return common // BLOCK * BLOCK


def _picture_urls(messages: list[dict[str, Any]]) -> list[str]:
    parts = [part for message in messages for part in message["content"] if isinstance(part, dict)]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def _decode(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
