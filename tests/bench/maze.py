"""The maze environment alone: a step, its frame and its PNG."""

import sys

from containers.trainer.conversation import png_data_uri
from containers.trainer.maze import MazeGame
from containers.trainer.wilson import layout_from_seed
from tests.bench.clocks import best_s
from tests.bench.measures import Measure

CELL_PX = {"tiny": (7, 8), "VisGym easy": (9, 25)}


def main() -> None:
    num_steps = 200 if "--short" in sys.argv else 5000
    for name, (size, cell_px) in CELL_PX.items():
        game = MazeGame(layout_from_seed(5, size, size), cell_px)
        actions = [f"('move', {i % 4})" for i in range(num_steps)]

        def steps(game: MazeGame = game, actions: list[str] = actions) -> None:
            for action in actions:
                game.step(action)

        def frames(game: MazeGame = game, actions: list[str] = actions) -> None:
            for action in actions:
                game.step(action)
                game.frame()

        def pictures(game: MazeGame = game, actions: list[str] = actions) -> None:
            for action in actions:
                game.step(action)
                png_data_uri(game.frame())

        for what, action in (("step", steps), ("and frame", frames), ("and PNG", pictures)):
            rate = num_steps / best_s(action)
            Measure(part="maze", what=f"{name}: {what}", value=rate, unit="steps/s").say()


if __name__ == "__main__":
    main()
