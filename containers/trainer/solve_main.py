"""Let a hosted model play one maze: its moves on the terminal, the episode as an animated picture.

python -m containers.trainer.solve_main JOB.json --seed 123 --out solve.gif
"""

import argparse
import os
import sys
from pathlib import Path

import httpx
from PIL import Image

from configs.jobs import SolveJob
from configs.mazes import load_maze_set
from containers.trainer.player import ChatPlayer, PlayedEpisode, PlayedTurn
from containers.trainer.wilson import layout_from_seed

ARROWS = {"('move', 0)": "right", "('move', 1)": "up", "('move', 2)": "left", "('move', 3)": "down"}
_FRAME_MS, _LAST_FRAME_MS, _WIDTH_PX = 350, 1500, 280


def main() -> None:
    """Read the job and the seed, play, and write the picture."""
    parser = argparse.ArgumentParser(description="Let a hosted model play one maze")
    parser.add_argument("job", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    job = SolveJob.read(arguments.job)
    mazes = load_maze_set(job.config.mazes.test_set)
    layout = layout_from_seed(arguments.seed, mazes.height, mazes.width)
    player = ChatPlayer(
        job.url,
        job.model,
        job.config.mazes,
        job.config.evaluate.max_action_tokens,
        os.environ.get("VLLM_API_KEY"),
    )
    try:
        episode = player.play(layout, tell)
    except httpx.HTTPError as error:
        sys.exit(
            f"the model server at {job.url} does not answer ({error}): `make run` serves it again"
        )
    animate(episode, arguments.out)
    needed = layout.turns_needed
    say(f"{episode.end} after {len(episode.turns)} turns ({needed} needed): {arguments.out}")


def tell(turn: PlayedTurn) -> None:
    """One line for each turn."""
    say(f"{ARROWS.get(turn.action, turn.action):<18} {turn.outcome:<11} now at {turn.agent}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def animate(episode: PlayedEpisode, path: Path) -> None:
    """Write the episode as an endless GIF, enlarged without blurring."""
    scale = max(1, _WIDTH_PX // episode.frames[0].shape[1])
    pictures = [
        Image.fromarray(frame.repeat(scale, axis=0).repeat(scale, axis=1))
        for frame in episode.frames
    ]
    durations = [_FRAME_MS] * (len(pictures) - 1) + [_LAST_FRAME_MS]
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0)


if __name__ == "__main__":
    main()
