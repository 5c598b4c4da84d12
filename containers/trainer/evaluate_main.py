"""The evaluation job: play every fixed maze with the base or with one adapter, greedily.

    python -m containers.trainer.evaluate_main JOB.json

It serves the model itself, as hosting does, and asks through the chat API, as a user does. All
mazes are played or the job fails: episodes.jsonl first, summary.json last.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from configs.jobs import EvaluateJob, EvaluationSummary
from configs.mazes import MazeSet, load_maze_set
from configs.serving import BASE_NAME
from containers.server.launch import OPENAI_SERVER, ServerPlan
from containers.trainer.checkpoints import write_atomically
from containers.trainer.inference import free_port, inference_server
from containers.trainer.player import ChatPlayer, PlayedEpisode

ADAPTER_NAME = "adapter"


def main() -> None:
    """Read the job and play."""
    job = EvaluateJob.read(Path(sys.argv[1]))
    job.output.mkdir(parents=True, exist_ok=True)
    job.scratch.mkdir(parents=True, exist_ok=True)
    mazes = load_maze_set(job.config.mazes.test_set)
    began = time.monotonic()
    with inference_server(server_plan(job), job.scratch / "inference-server.log") as url:
        episodes = play_all(job, mazes, f"{url}/v1")
    write(job.output, mazes, episodes, time.monotonic() - began)


def server_plan(job: EvaluateJob) -> ServerPlan:
    """The server of this evaluation: the base, and the adapter where there is one."""
    config = job.config
    return ServerPlan(
        module=OPENAI_SERVER,
        model=config.model.path,
        served_name=BASE_NAME,
        port=free_port(),
        device=config.train.device,
        dtype=config.evaluate.dtype,
        max_model_len=config.model.max_model_len,
        max_num_seqs=config.evaluate.concurrency,
        lora_rank=config.train.lora.rank,
        max_images=config.mazes.max_turns,
        adapters={ADAPTER_NAME: job.adapter} if job.adapter else {},
        kv_cache_gb=config.train.kv_cache_gb,
    )


def play_all(job: EvaluateJob, mazes: MazeSet, url: str) -> list[PlayedEpisode]:
    """Play all mazes, in order; raises what the first failing episode raises."""
    model = ADAPTER_NAME if job.adapter else BASE_NAME
    player = ChatPlayer(url, model, job.config.mazes, job.config.evaluate.max_action_tokens)
    with ThreadPoolExecutor(job.config.evaluate.concurrency) as pool:
        return list(pool.map(player.play, mazes.mazes))


def write(
    output: Path, mazes: MazeSet, episodes: list[PlayedEpisode], seconds: float
) -> EvaluationSummary:
    """Write both files and return the summary."""
    assert len(episodes) == len(mazes.mazes)
    lines = [
        json.dumps(
            {
                "seed": episode.layout.seed,
                "solved": episode.solved,
                "end": episode.end,
                "turns": [asdict(turn) for turn in episode.turns],
            }
        )
        for episode in episodes
    ]
    (output / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    summary = EvaluationSummary(
        num_mazes=len(episodes),
        num_solved=sum(episode.solved for episode in episodes),
        solved=tuple(episode.solved for episode in episodes),
        turns=tuple(len(episode.turns) for episode in episodes),
        turns_needed=tuple(mazes.turns_needed()),
        ends=tuple(episode.end for episode in episodes),
        seconds=seconds,
    )
    write_atomically(output / "summary.json", summary.model_dump_json(indent=1))
    return summary


if __name__ == "__main__":
    main()
