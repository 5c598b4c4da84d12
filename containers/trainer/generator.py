"""Rollouts that cannot drift: the token ids that were sampled are the truth.

SkyRL's VLM generator keeps the conversation as text, renders all of it again every turn and
finds the new observation by its position. A sampled sequence that is not the canonical spelling
of its own text then shifts that position: image tokens are lost or doubled, silently or fatally.

Here every id sampled is kept as it is and only the new message is rendered, behind a fixed short
exchange whose length is known. What is the same for many episodes (all samples of a group start
alike; a maze has few different pictures) is rendered once. An answer that holds a vision token
is cut there and ends its episode unrewarded, so image tokens and images always match.

Each answer is drawn with a seed of its own, made of the run's seed, the episode and the place in
it. So a step that is trained anew after a crash plays the same episodes again, whatever else the
server does at the time, and the history of a run has no seam.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

import skyrl_gym
import torch
from skyrl.backends.renderer import decode_mm_kwargs
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInput
from skyrl.train.generators.base import TRAINING_PHASE_TRAIN
from skyrl.train.generators.skyrl_gym_generator import TrajectoryOutput
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator

from configs.digests import digest_of
from containers.trainer.conversation import Message

VISION_TOKENS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Tokens that a player may not say: the trainer would look for a picture behind them."""


@dataclass(frozen=True)
class Picture:
    """One image as the server sends and takes it, and as the trainer needs it."""

    content_hash: str
    kwargs_data: str
    """The processed picture, serialised by the server."""
    grid_data: str | None
    """The same with its grid of patches only, where the server gives that."""
    offset: int
    """Of its first placeholder token within the message."""
    length: int
    pixel_values: torch.Tensor
    """(patches, patch values)."""
    grid_thw: torch.Tensor
    """(1, 3): frames, rows and columns of patches."""


@dataclass(frozen=True)
class RenderedMessage:
    """One user message as token ids, up to where the answer starts."""

    ids: tuple[int, ...]
    pictures: tuple[Picture, ...]


@dataclass
class Episode:
    """What one trajectory has come to: ids of prompt and response, and all its pictures."""

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    num_computed: int = 0
    """Leading tokens that the server has computed for certain."""
    offsets: list[int] = field(default_factory=list)
    """Position of each picture's first placeholder in prompt and response together."""

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.response_ids

    def show(self, pictures: Sequence[Picture], begins_at: int) -> None:
        """Add the pictures of a message whose first token stands at `begins_at`."""
        self.pictures.extend(pictures)
        self.offsets.extend(begins_at + picture.offset for picture in pictures)

    def hear(self, message: RenderedMessage) -> None:
        """Append an observation: no loss on it."""
        self.show(message.pictures, len(self.prompt_ids) + len(self.response_ids))
        self.append(message.ids, [0.0] * len(message.ids), masked=True)

    def append(self, ids: Sequence[int], logprobs: Sequence[float], *, masked: bool) -> None:
        self.response_ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.loss_mask.extend([0 if masked else 1] * len(ids))
        self.rewards.extend([0.0] * len(ids))

    def features(self, num_cached: int) -> dict[str, Any] | None:
        """The pictures in the form of vLLM's token-in token-out endpoint.

        Of a picture within the first `num_cached` tokens, whose keys and values the server
        still has, only the grid is sent: it is needed for positions, the pixels are not. So
        what is sent and decoded in an episode grows with its turns, not with their square.
        """
        if not self.pictures:
            return None
        places, data = [], []
        for picture, offset in zip(self.pictures, self.offsets, strict=True):
            places.append({"offset": offset, "length": picture.length})
            is_cached = picture.grid_data and offset + picture.length <= num_cached
            data.append(picture.grid_data if is_cached else picture.kwargs_data)
        return {
            "mm_hashes": {"image": [picture.content_hash for picture in self.pictures]},
            "mm_placeholders": {"image": places},
            "kwargs_data": {"image": data},
        }


class TokenTruthGenerator(SkyRLVLMGymGenerator):
    """SkyRL's VLM generator with `agent_loop` replaced; what surrounds it is unchanged."""

    def __init__(
        self, *args: Any, seed: int, cache_block_tokens: int | None, **kwargs: Any
    ) -> None:
        """`cache_block_tokens`: block size of the server's prefix cache, where that cache is
        known to hold every running episode; None sends all pixels every time."""
        super().__init__(*args, **kwargs)
        self._seed = seed
        self._block = cache_block_tokens
        self._rendered: dict[str, asyncio.Task[RenderedMessage]] = {}
        vocabulary = self.tokenizer.get_vocab()
        self._vision_ids = {vocabulary[t] for t in VISION_TOKENS if t in vocabulary}
        self._slots = asyncio.Semaphore(self.generator_cfg.inference_engine.max_num_seqs)

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Play a batch. Renderings live as long as the batch: the next one has other mazes."""
        try:
            return await super().generate(*args, **kwargs)
        finally:
            self._rendered.clear()

    async def agent_loop(
        self,
        prompt: list[Message],
        env_class: str,
        env_extras: dict[str, Any],
        max_tokens: int,
        max_input_length: int,
        sampling_params: dict[str, Any] | None = None,
        trajectory_id: Any = None,
        cache_salt: str | None = None,
        training_phase: Any = TRAINING_PHASE_TRAIN,
    ) -> TrajectoryOutput:
        """Play one episode; see the parent for the arguments."""
        async with self._slots:
            began = time.monotonic()
            session = (
                f"{trajectory_id.instance_id}_{trajectory_id.repetition_id}"
                if trajectory_id
                else uuid4().hex
            )
            sampling = self._without_vision_tokens(
                sampling_params or asdict(self.generator_cfg.sampling_params)
            )
            env = skyrl_gym.make(env_class, env_config={}, extras=env_extras)
            try:
                messages, _ = await self._run_in_executor_if_available(env.init, prompt)
                first = await self._render(messages)
                episode = Episode(list(first.ids))
                episode.show(first.pictures, 0)
                stop_reason = await self._play(
                    env, episode, sampling, max_input_length, session, cache_salt
                )
                return self._output(episode, env, stop_reason, time.monotonic() - began)
            finally:
                await self._run_in_executor_if_available(env.close)
                await self.inference_engine_client.finish_session(session)

    async def _play(
        self,
        env: Any,
        episode: Episode,
        sampling: dict[str, Any],
        max_input_length: int,
        session: str,
        cache_salt: str | None,
    ) -> str:
        """Alternate answers and observations until the episode ends; returns why it ended."""
        while True:
            if len(episode.ids) > max_input_length:
                return "length"
            asked = len(episode.ids)
            ids, logprobs, stop_reason = await self._answer(episode, sampling, session, cache_salt)
            episode.num_computed = asked
            spoken = next((i for i, token in enumerate(ids) if token in self._vision_ids), None)
            if spoken is not None:
                ids, logprobs = ids[:spoken], logprobs[:spoken]
            episode.append(ids, logprobs, masked=False)
            if not ids or ids[-1] != self.tokenizer.eos_token_id:
                episode.append([self.tokenizer.eos_token_id], [0.0], masked=True)
            if spoken is not None:
                return "vision_token"
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            turn = await self._run_in_executor_if_available(env.step, text)
            episode.rewards[-1] = float(turn["reward"])
            if turn["done"]:
                return stop_reason
            episode.hear(await self._render_observation(turn["observations"]))

    async def _answer(
        self, episode: Episode, sampling: dict[str, Any], session: str, cache_salt: str | None
    ) -> tuple[list[int], list[float], str]:
        features = episode.features(self._num_cached(episode))
        request: dict[str, Any] = {
            "prompt_token_ids": [episode.ids],
            "session_ids": [session],
            "sampling_params": {**sampling, "seed": self._draw(session, len(episode.ids))},
            "mm_features": [features] if features else None,
            "cache_salt": cache_salt,
        }
        output = await self.inference_engine_client.generate(
            cast(InferenceEngineInput, request), model=self.policy_model_name
        )
        ids = list(output["response_ids"][0])
        scores = output["response_logprobs"]
        logprobs = list(scores[0]) if scores and scores[0] else [0.0] * len(ids)
        return ids, logprobs, output["stop_reasons"][0]

    def _draw(self, session: str, position: int) -> int:
        """The seed of the answer at a position of an episode."""
        return int(digest_of([self._seed, session, position])[:8], 16)

    def _num_cached(self, episode: Episode) -> int:
        """Tokens in full blocks that the server computed for this episode's previous answer."""
        if self._block is None:
            return 0
        return (episode.num_computed // self._block) * self._block

    def _without_vision_tokens(self, sampling: dict[str, Any]) -> dict[str, Any]:
        return {**sampling, "logit_bias": {str(token): -100.0 for token in self._vision_ids}}

    def _output(
        self, episode: Episode, env: Any, stop_reason: str, seconds: float
    ) -> TrajectoryOutput:
        pictures = episode.pictures
        wants_logprobs = self.generator_cfg.sampling_params.logprobs is not None
        return TrajectoryOutput(
            response_ids=episode.response_ids,
            reward=episode.rewards,
            stop_reason=stop_reason,
            loss_mask=episode.loss_mask,
            prompt_ids=episode.prompt_ids,
            rollout_logprobs=episode.logprobs if wants_logprobs else None,
            env_metrics=env.get_metrics(),
            pixel_values=torch.cat([p.pixel_values for p in pictures]) if pictures else None,
            image_grid_thw=torch.cat([p.grid_thw for p in pictures]) if pictures else None,
            e2e_time=seconds,
        )

    async def _render_observation(self, observations: list[Message]) -> RenderedMessage:
        """An observation as it continues a conversation whose last token is the end of an answer.

        It is rendered behind a fixed exchange; what stands behind that exchange's own last
        end-of-turn token is the continuation, template newlines included.
        """
        exchange = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "!"},
        ]
        before = await self._render(exchange, is_complete=True)
        eos = self.tokenizer.eos_token_id
        length = len(before.ids) - before.ids[::-1].index(eos)
        whole = await self._render([*exchange, *observations])
        assert whole.ids[:length] == before.ids[:length], "the chat template does not only append"
        shifted = tuple(
            replace(picture, offset=picture.offset - length) for picture in whole.pictures
        )
        return RenderedMessage(whole.ids[length:], shifted)

    async def _render(
        self, messages: list[Message], *, is_complete: bool = False
    ) -> RenderedMessage:
        """Render messages once, however many episodes wait for them."""
        key = json.dumps([messages, is_complete])
        if key not in self._rendered:
            self._rendered[key] = asyncio.create_task(self._ask_to_render(messages, is_complete))
        return await self._rendered[key]

    async def _ask_to_render(self, messages: list[Message], is_complete: bool) -> RenderedMessage:
        request = {
            "model": self.inference_engine_client.model_name,
            "messages": messages,
            "add_generation_prompt": not is_complete,
        }
        answer = await self.inference_engine_client.render_chat_completion({"json": request})
        features = answer.get("features")
        pictures = _pictures(features) if features else ()
        return RenderedMessage(tuple(answer["token_ids"]), pictures)


def _pictures(features: dict[str, Any]) -> tuple[Picture, ...]:
    places = features["mm_placeholders"]["image"]
    hashes, data = features["mm_hashes"]["image"], features["kwargs_data"]["image"]
    grids = (features.get("mm_metadata") or {}).get("image") or [None] * len(data)
    pictures = []
    for place, content_hash, kwargs_data, grid in zip(places, hashes, data, grids, strict=True):
        decoded = decode_mm_kwargs({"image": [kwargs_data]})
        pictures.append(
            Picture(
                content_hash=content_hash,
                kwargs_data=kwargs_data,
                grid_data=grid,
                offset=place["offset"],
                length=place["length"],
                pixel_values=decoded["pixel_values"],
                grid_thw=decoded["image_grid_thw"],
            )
        )
    return tuple(pictures)
