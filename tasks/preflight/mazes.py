"""How good could a perfect player be, with the turns that it is given?"""

from configs.mazes import load_maze_set
from configs.schema import PostTrainConfig
from tasks.preflight.findings import Finding


def turn_ceiling(config: PostTrainConfig) -> Finding:
    """The share of the fixed mazes that max_turns lets anybody solve."""
    mazes, max_turns = load_maze_set(config.mazes.test_set), config.mazes.max_turns
    solvable, total = mazes.num_solvable(max_turns), len(mazes.mazes)
    return Finding(
        name="turn limit",
        ok=solvable == total,
        detail=f"{max_turns} turns can solve at most {solvable} of the {total} mazes",
        fix=f"give mazes.max_turns = {max(mazes.turns_needed())}",
    )
