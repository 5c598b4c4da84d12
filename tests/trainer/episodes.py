"""Scripted episodes of one maze, played by a generator against the stand-in server."""

import containers.trainer.cpu_device  # noqa: F401  before SkyRL

# isort: split

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorOutput, TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import TrajectoryOutput
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator
from skyrl_gym.envs.registration import deregister
from transformers import AutoProcessor

from configs.jobs import TrainJob
from configs.loader import load_config
from configs.mazes import load_maze_set
from containers.trainer.generator import TokenTruthGenerator
from containers.trainer.maze_env import register
from containers.trainer.rows import ENVIRONMENT
from containers.trainer.skyrl_config import translate
from tests.trainer.stand_in_server import StandInServer

CONFIG = load_config("smoke")
MAZE = load_maze_set(CONFIG.mazes.test_set).mazes[0]
SOLUTION = [f"('move', {way})" for way in MAZE.shortest_path() or []] + ["('stop', 'stop')"]
PROCESSOR = AutoProcessor.from_pretrained(CONFIG.model.path)
VOCABULARY = PROCESSOR.tokenizer.get_vocab()
EOS = PROCESSOR.tokenizer.eos_token_id
PROMPT = [{"role": "user", "content": "maze"}]
IMAGE = VOCABULARY["<|image_pad|>"]


def canonical(action: str) -> list[int]:
    return [*PROCESSOR.tokenizer.encode(action), EOS]


def spelled_out(action: str) -> list[int]:
    """The same text, one token for each character."""
    return [*(VOCABULARY[letter.replace(" ", "\u0120")] for letter in action), EOS]


def make_generator(
    server: StandInServer,
    kind: type[SkyRLVLMGymGenerator] = TokenTruthGenerator,
    max_model_len: int = 1024,
    **arguments: Any,
) -> SkyRLVLMGymGenerator:
    """A generator of the smoke profile; ours sends all pixels unless `arguments` say otherwise."""
    if kind is TokenTruthGenerator:
        arguments = {"seed": 1, "cache_block_tokens": None} | arguments
    nowhere = Path("/nonexistent")
    job = TrainJob(
        run_id="test",
        attempt=1,
        config=load_config("smoke", {"model.max_model_len": max_model_len}),
        base_digest="",
        checkpoints=nowhere,
        adapters=nowhere,
        metrics=nowhere,
        attempts=nowhere,
        scratch=nowhere,
    )
    cfg = translate(job, nowhere, "http://127.0.0.1:1", None)
    gym, tokenizer = cfg.environment.skyrl_gym, PROCESSOR.tokenizer
    return kind(cfg.generator, gym, server, tokenizer, server.model_name, **arguments)


def play(server: StandInServer, *arguments: Any, **named: Any) -> TrajectoryOutput:
    """One episode of MAZE against the server's script; see `make_generator`."""
    generator = make_generator(server, *arguments, **named)
    config = generator.generator_cfg
    episode = generator.agent_loop(
        PROMPT,
        ENVIRONMENT,
        {"layout": MAZE.model_dump_json()},
        config.sampling_params.max_generate_length,
        config.max_input_length,
        trajectory_id=TrajectoryID("maze", 0),
    )
    with environment():
        return asyncio.run(episode)


def play_group(generator: SkyRLVLMGymGenerator, size: int) -> GeneratorOutput:
    """A batch of `size` samples of MAZE."""
    batch: GeneratorInput = {
        "prompts": [PROMPT] * size,
        "env_classes": [ENVIRONMENT] * size,
        "env_extras": [{"layout": MAZE.model_dump_json()} for _ in range(size)],
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID("maze", sample) for sample in range(size)],
        "batch_metadata": None,
    }
    with environment():
        return asyncio.run(generator.generate(batch, disable_tqdm=True))


@contextmanager
def environment() -> Iterator[None]:
    """The maze environment is known to SkyRL."""
    register(CONFIG)
    try:
        yield
    finally:
        deregister(ENVIRONMENT)


def server_for(*script: list[int]) -> StandInServer:
    return StandInServer(PROCESSOR, script)


def image_tokens(output: TrajectoryOutput) -> int:
    return (output.prompt_ids + output.response_ids).count(IMAGE)


def image_tokens_needed(output: TrajectoryOutput) -> int:
    """One for each square of 2 by 2 patches."""
    patches = int(output.image_grid_thw.prod(-1).sum())
    assert len(output.pixel_values) == patches
    return patches // 4


def assert_well_formed(output: TrajectoryOutput, server: StandInServer) -> None:
    """Lists of one length, pictures that fit, and a whole that only ever grew."""
    lengths = {len(output.loss_mask), len(output.reward), len(output.rollout_logprobs)}
    assert lengths == {len(output.response_ids)}
    assert image_tokens(output) == image_tokens_needed(output)
    whole = output.prompt_ids + output.response_ids
    for request in server.requests:
        assert whole[: len(request["ids"])] == request["ids"]
    assert server.finished == ["maze_0"]


def sampled(output: TrajectoryOutput) -> list[int]:
    """The tokens that carry loss."""
    marked = zip(output.response_ids, output.loss_mask, strict=True)
    return [token for token, mask in marked if mask]


def solving_script() -> list[list[int]]:
    return [canonical(action) for action in SOLUTION]
