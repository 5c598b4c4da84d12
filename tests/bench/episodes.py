"""Our side of an evaluation as episodes grow: the server answers at once and always the same."""

import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from pathlib import Path

from configs.loader import load_config
from configs.mazes import load_maze_set
from containers.trainer.evaluate_main import write
from containers.trainer.player import ChatPlayer
from tests.bench.clocks import best_s
from tests.bench.measures import Measure

_ANSWER = json.dumps({"choices": [{"message": {"content": "('move', 0)"}}]}).encode()


class Echo(BaseHTTPRequestHandler):
    """A model that always goes right."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Headers and body leave together: apart, an episode took 1.3 to 1.7 times as long."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(_ANSWER)))
        self.end_headers()
        self.wfile.write(_ANSWER)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    counts = (8, 16) if "--short" in sys.argv else (64, 512, 4096)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    costs = [play(count, server.server_port) / count for count in counts]
    server.shutdown()
    for count, cost in zip(counts, costs, strict=True):
        name = f"our side, {count} episodes"
        Measure(part="episodes", what=name, value=cost * 1000, unit="ms/episode").say()
    name = f"growth of the cost of an episode, {counts[0]} to {counts[-1]}"
    ratio = costs[-1] / costs[0]
    Measure(part="episodes", what=name, value=ratio, unit="ratio", target=1.5).say()


def play(num_episodes: int, port: int) -> float:
    """Seconds to play and write them."""
    config = load_config("local")
    mazes = load_maze_set(config.mazes.test_set)
    many = mazes.model_copy(update={"mazes": tuple(islice(cycle(mazes.mazes), num_episodes))})
    player = ChatPlayer(f"http://127.0.0.1:{port}/v1", "m", config.mazes, 8)

    def evaluate() -> None:
        with ThreadPoolExecutor(config.evaluate.concurrency) as pool:
            played = list(pool.map(player.play, many.mazes))
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), many.mazes, played, 0.0)

    return best_s(evaluate, rounds=1)


if __name__ == "__main__":
    main()
