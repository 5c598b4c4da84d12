"""Mazes held out beside the fixed set: what the adapter makes of mazes it has never met.

Their seeds lie beyond those of training and far beyond those of the fixed sets; the layouts are
compared all the same, since a small maze comes up again under many seeds.
"""

from configs.jobs import HeldOut
from configs.mazes import MazeLayout, MazeSet
from configs.schema import PostTrainConfig
from containers.trainer.rows import draw_training_mazes
from containers.trainer.wilson import layout_from_seed

FIRST_HELD_OUT_SEED = 2**32
"""Training draws its seeds below."""

_DRAWS_PER_MAZE = 64
"""Beyond this many draws for each maze wanted there are hardly any left: of 7x7 mazes there are
768 in all."""


def draw_held_out_mazes(
    config: PostTrainConfig, test_set: MazeSet, wanted: HeldOut
) -> tuple[MazeLayout, ...]:
    """Different mazes that can be solved in the turns given, always the same for a run.

    Fewer than wanted, even none, where training leaves no more.
    """
    settings = config.train
    trained = draw_training_mazes(test_set, settings.steps * settings.mazes_per_step, settings.seed)
    known = {maze.identity for maze in (*test_set.mazes, *trained)}
    mazes: list[MazeLayout] = []
    for draw in range(_DRAWS_PER_MAZE * wanted.num_mazes):
        layout = layout_from_seed(FIRST_HELD_OUT_SEED + draw, wanted.height, wanted.width)
        if layout.identity not in known and layout.turns_needed <= config.mazes.max_turns:
            known.add(layout.identity)
            mazes.append(layout)
        if len(mazes) == wanted.num_mazes:
            break
    return tuple(mazes)
