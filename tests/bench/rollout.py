"""Turns per second in rollout: ours against SkyRL's generator and vLLM with their defaults.

Both play the same mazes with the same adapter, one after the other, each on its own server.
"""

import containers.trainer.cpu_device  # noqa: F401  before SkyRL

# isort: split

import asyncio
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peft import LoraConfig, get_peft_model
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteInferenceClient,
)
from skyrl.train.generators.base import GeneratorInput, TrajectoryID
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator
from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

from configs.engine import CPU_BLOCK_TOKENS
from configs.jobs import TrainJob
from configs.loader import load_config
from configs.mazes import MazeLayout, load_maze_set
from configs.serving import BASE_NAME
from containers.server.leash import leashed
from containers.trainer.generator import TokenTruthGenerator
from containers.trainer.inference import await_health, free_port, inference_server
from containers.trainer.maze_env import register
from containers.trainer.rows import ENVIRONMENT, draw_training_mazes
from containers.trainer.skyrl_config import translate
from containers.trainer.train_main import server_plan
from tests.bench.measures import Measure

_ADAPTER = "skyrl-lora"


def main() -> None:
    short = "--short" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(Path(folder))
        register(job.config)
        make_adapter(job)
        num_mazes = 1 if short else 16
        with inference_server(server_plan(job), job.scratch / "ours.log") as url:
            ours = asyncio.run(play(job, url, TokenTruthGenerator, num_mazes))
        with default_server(job) as url:
            theirs = asyncio.run(play(job, url, SkyRLVLMGymGenerator, max(1, num_mazes // 4)))
    Measure(part="rollout", what="ours", value=ours, unit="turns/s").say()
    Measure(part="rollout", what="SkyRL and vLLM defaults", value=theirs, unit="turns/s").say()
    Measure(
        part="rollout",
        what="ours / defaults",
        value=ours / theirs,
        unit="ratio",
        target=5,
        better="higher",
    ).say()


def make_job(folder: Path) -> TrainJob:
    return TrainJob(
        run_id="bench",
        attempt=1,
        config=load_config("local"),
        base_digest="",
        checkpoints=folder,
        adapters=folder,
        metrics=folder / "metrics.jsonl",
        attempts=folder,
        scratch=folder,
    )


def make_adapter(job: TrainJob) -> None:
    """A new adapter, which changes nothing yet and costs what a trained one does."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(job.config.model.path)
    lora = job.config.train.lora
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules="all-linear",
        exclude_modules=lora.exclude_modules,
    )
    get_peft_model(model, settings).save_pretrained(job.scratch / "adapter")


@contextmanager
def default_server(job: TrainJob) -> Generator[str]:
    """SkyRL's server with vLLM's CPU worker, told only what it cannot guess."""
    port, log = free_port(), job.scratch / "defaults.log"
    config = job.config
    command = [
        *(sys.executable, "-m", server_plan(job).module),
        *("--model", str(config.model.path), "--served-model-name", BASE_NAME),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", str(config.model.max_model_len), "--enforce-eager"),
        *("--enable-lora", "--max-lora-rank", str(config.train.lora.rank)),
        *("--limit-mm-per-prompt", f'{{"image": {config.mazes.max_turns}, "video": 0}}'),
        *("--worker-cls", "vllm.v1.worker.cpu_worker.CPUWorker"),
        *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"),
    ]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with leashed(command, environment, log) as process:
        url = f"http://127.0.0.1:{port}"
        await_health(url, process, log, timeout_s=600)
        yield url


async def play(job: TrainJob, url: str, kind: type[SkyRLVLMGymGenerator], num_mazes: int) -> float:
    """Turns per second over a batch of groups, after one group to warm up."""
    tokenizer = AutoProcessor.from_pretrained(job.config.model.path).tokenizer
    client = RemoteInferenceClient(
        proxy_url=url,
        server_urls=[url],
        data_parallel_size=1,
        model_name=BASE_NAME,
        uses_lora_weight_sync=True,
        tokenizer=tokenizer,
    )
    await client.load_lora_adapter(_ADAPTER, str(job.scratch / "adapter"))
    cfg = translate(job, job.scratch, url, None)
    ours: dict[str, Any] = {"seed": 1, "cache_block_tokens": CPU_BLOCK_TOKENS}
    arguments = ours if kind is TokenTruthGenerator else {}
    gym = cfg.environment.skyrl_gym
    generator = kind(cfg.generator, gym, client, tokenizer, _ADAPTER, **arguments)
    mazes = draw_training_mazes(load_maze_set(job.config.mazes.test_set), num_mazes + 1, seed=5)
    await generator.generate(groups(job, mazes[:1]), disable_tqdm=True)
    began = time.monotonic()
    output = await generator.generate(groups(job, mazes[1:]), disable_tqdm=True)
    seconds = time.monotonic() - began
    await client.aclose()
    return sum(num_answers(mask) for mask in output["loss_masks"]) / seconds


def groups(job: TrainJob, mazes: list[MazeLayout]) -> GeneratorInput:
    """Every maze as often as a GRPO group plays it."""
    size = job.config.train.samples_per_maze
    of_each = [maze for maze in mazes for _ in range(size)]
    prompt = [{"role": "user", "content": "maze"}]
    return {
        "prompts": [prompt] * len(of_each),
        "env_classes": [ENVIRONMENT] * len(of_each),
        "env_extras": [{"layout": maze.model_dump_json()} for maze in of_each],
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID(str(i // size), i % size) for i in range(len(of_each))],
        "batch_metadata": None,
    }


def num_answers(loss_mask: list[int]) -> int:
    """Runs of trained tokens: each is one answer."""
    return sum(now > before for before, now in zip([0, *loss_mask], loss_mask, strict=False))


if __name__ == "__main__":
    main()
