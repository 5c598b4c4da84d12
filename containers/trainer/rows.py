"""Training rows: which maze each GRPO group plays, fixed before the first step.

A row carries its whole layout, so all samples of a group play the same maze whatever process
plays them, and no layout is one of the test set: layouts are compared, not seeds.
"""

import json
import random
from pathlib import Path

from configs.mazes import MazeLayout, MazeSet
from configs.schema import PostTrainConfig
from containers.trainer.wilson import layout_from_seed

ENVIRONMENT = "ariadne-maze"
"""Name under which the maze environment is registered with SkyRL."""

FIRST_TRAINING_SEED = 1_000_000
"""Far from the seeds of the test sets; the layouts are compared all the same."""


def draw_training_mazes(test_set: MazeSet, num_mazes: int, seed: int) -> list[MazeLayout]:
    """Mazes of the test set's size, none of them in it; the same for the same `seed`."""
    held_out = {maze.identity for maze in test_set.mazes}
    draw = random.Random(seed)
    mazes: list[MazeLayout] = []
    while len(mazes) < num_mazes:
        maze_seed = FIRST_TRAINING_SEED + draw.randrange(2**31)
        layout = layout_from_seed(maze_seed, test_set.height, test_set.width)
        if layout.identity not in held_out:
            mazes.append(layout)
    return mazes


def write_rows(config: PostTrainConfig, test_set: MazeSet, path: Path) -> None:
    """One JSON line for each group of the whole run: steps * mazes_per_step of them."""
    num_mazes = config.train.steps * config.train.mazes_per_step
    mazes = draw_training_mazes(test_set, num_mazes, config.train.seed)
    with path.open("w") as file:
        for layout in mazes:
            row = {
                # SkyRL asks for a prompt; the environment writes the real one.
                "prompt": [{"role": "user", "content": "maze"}],
                "env_class": ENVIRONMENT,
                "layout": layout.model_dump_json(),
            }
            file.write(json.dumps(row) + "\n")
