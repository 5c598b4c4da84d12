"""The evaluation job: play every fixed maze with the base or with one adapter, greedily.

    python -m containers.trainer.evaluate_main JOB.json

It serves the model itself, as hosting does, and asks through the chat API, as a user does. All
mazes of a set are played or the job fails: episodes.jsonl first, summary.json last.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import httpx

from configs.jobs import EvaluateJob, EvaluationSummary
from configs.mazes import MazeLayout, MazeSet, load_maze_set
from configs.serving import BASE_NAME
from containers.server.launch import OPENAI_SERVER, ServerPlan
from containers.trainer.checkpoints import write_atomically
from containers.trainer.held_out import draw_held_out_mazes
from containers.trainer.inference import free_port, inference_server
from containers.trainer.player import ChatPlayer, PlayedEpisode

ADAPTER_NAME = "adapter"
Play = Callable[[MazeLayout], PlayedEpisode]


def main() -> None:
    """Read the job and play."""
    job = EvaluateJob.read(Path(sys.argv[1]))
    job.scratch.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with inference_server(server_plan(job), job.scratch / "inference-server.log") as url:
        play_sets(job, f"{url}/v1", began)


def play_sets(job: EvaluateJob, url: str, began: float) -> None:
    """Play what has no summary yet: the fixed mazes, then those held out.

    The time of the first set played counts from `began`, so the start of the server is in it.
    """
    test_set = load_maze_set(job.config.mazes.test_set)
    model = ADAPTER_NAME if job.adapter else BASE_NAME
    player = ChatPlayer(url, model, job.config.mazes, job.config.evaluate.max_action_tokens)
    concurrency = job.config.evaluate.concurrency
    if not _is_played(job.output):
        play_set(player.play, test_set.mazes, job.output, concurrency, began)
        began = time.monotonic()
    for held_out in job.held_out:
        if not _is_played(held_out.output):
            mazes = draw_held_out_mazes(job.config, test_set, held_out)
            play_set(within_context(player.play), mazes, held_out.output, concurrency, began)
            began = time.monotonic()


def play_set(
    play: Play, mazes: Sequence[MazeLayout], output: Path, concurrency: int, began: float
) -> None:
    """Play all mazes, in order, and write what came of them; raises what a failing episode does."""
    with ThreadPoolExecutor(concurrency) as pool:
        episodes = list(pool.map(play, mazes))
    write(output, mazes, episodes, time.monotonic() - began)


def within_context(play: Play) -> Play:
    """A play that is lost where its talk outgrows the model's context.

    The context has room for the fixed mazes; of larger ones nobody has promised that.
    """

    def play_or_lose(layout: MazeLayout) -> PlayedEpisode:
        try:
            return play(layout)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.BAD_REQUEST:
                raise
            return PlayedEpisode(layout, False, "out of context", (), ())

    return play_or_lose


def server_plan(job: EvaluateJob) -> ServerPlan:
    """The server of this evaluation: the base, and the adapter where there is one."""
    config = job.config
    return ServerPlan(
        module=OPENAI_SERVER,
        model=config.model.path,
        served_name=BASE_NAME,
        listen=free_port(),
        device=config.train.device,
        dtype=config.evaluate.dtype,
        max_model_len=config.model.max_model_len,
        max_num_seqs=config.evaluate.concurrency,
        lora_rank=config.train.lora.rank,
        max_images=config.mazes.max_turns,
        adapters={ADAPTER_NAME: job.adapter} if job.adapter else {},
        kv_cache_gb=config.train.kv_cache_gb,
    )


def write(
    output: Path, mazes: Sequence[MazeLayout], episodes: Sequence[PlayedEpisode], seconds: float
) -> EvaluationSummary:
    """Write both files and return the summary."""
    assert len(episodes) == len(mazes)
    output.mkdir(parents=True, exist_ok=True)
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
        mazes_digest=MazeSet.digest_of(tuple(mazes)),
        num_mazes=len(episodes),
        num_solved=sum(episode.solved for episode in episodes),
        solved=tuple(episode.solved for episode in episodes),
        turns=tuple(len(episode.turns) for episode in episodes),
        turns_needed=tuple(maze.turns_needed for maze in mazes),
        ends=tuple(episode.end for episode in episodes),
        seconds=seconds,
    )
    write_atomically(output / "summary.json", summary.model_dump_json(indent=1))
    return summary


def _is_played(output: Path) -> bool:
    return (output / "summary.json").is_file()


if __name__ == "__main__":
    main()
