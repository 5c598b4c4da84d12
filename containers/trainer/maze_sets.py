"""Write a fixed set of mazes: explicit layouts drawn from rising seeds, twins left out.

python -m containers.trainer.maze_sets --name tiny-64 --size 7 --out configs/mazes/tiny-64.json
"""

import argparse
from pathlib import Path

from configs.mazes import MazeLayout, MazeSet
from containers.trainer.wilson import layout_from_seed


def make_maze_set(name: str, size: int, num_mazes: int) -> MazeSet:
    """The first `num_mazes` different mazes of `size` by `size` cells from seed 0 on."""
    different: dict[str, MazeLayout] = {}
    seed = 0
    while len(different) < num_mazes:
        layout = layout_from_seed(seed, size, size)
        different.setdefault(layout.identity, layout)
        seed += 1
    mazes = tuple(different.values())
    digest = MazeSet.digest_of(mazes)
    return MazeSet(name=name, height=size, width=size, digest=digest, mazes=mazes)


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description="Write a fixed set of mazes")
    parser.add_argument("--name", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--num-mazes", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    mazes = make_maze_set(arguments.name, arguments.size, arguments.num_mazes)
    arguments.out.write_text(mazes.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
