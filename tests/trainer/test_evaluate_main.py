"""The evaluation job: every maze of a set or none, and nothing is played twice."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs.jobs import EvaluateJob, EvaluationSummary, HeldOut
from configs.loader import load_config
from configs.mazes import MazeSet, load_maze_set
from containers.trainer.evaluate_main import play_sets, server_plan
from containers.trainer.held_out import draw_held_out_mazes

CONFIG = load_config("smoke")
TEST_SET = load_maze_set(CONFIG.mazes.test_set)


class Model(ThreadingHTTPServer):
    """Answers every question alike; talks about mazes of sizes in `too_long` are refused."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.models: list[str] = []
        self.status = 200
        self.too_long: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.models.append(request["model"])
        rules = request["messages"][0]["content"][1]["text"]
        too_long = any(f"a maze of {size} cells" in rules for size in self.server.too_long)
        answer = {"choices": [{"message": {"content": "('stop', 'stop')"}}]}
        body = json.dumps(answer).encode()
        self.send_response(400 if too_long else self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def make_job(folder: Path, **changes: Any) -> EvaluateJob:
    held_out = tuple(
        HeldOut(height=size, width=size, num_mazes=3, output=folder / f"held-out-{size}")
        for size in (7, 9)
    )
    job = EvaluateJob(
        config=CONFIG,
        adapter=folder / "adapter",
        output=folder / "fixed",
        held_out=held_out,
        scratch=folder,
    )
    return job.model_copy(update=changes)


def summary(folder: Path) -> EvaluationSummary:
    return EvaluationSummary.model_validate_json((folder / "summary.json").read_text())


def test_fixed_and_held_out_mazes_are_played_and_their_digests_kept(
    tmp_path: Path, model: Model
) -> None:
    job = make_job(tmp_path)
    play_sets(job, model.url, 0.0)
    fixed = summary(job.output)
    assert (fixed.num_mazes, fixed.num_solved) == (64, 0)
    assert fixed.mazes_digest == TEST_SET.digest
    assert set(fixed.ends) == {"stopped early"} and set(fixed.turns) == {1}
    for held_out in job.held_out:
        played, mazes = summary(held_out.output), draw_held_out_mazes(CONFIG, TEST_SET, held_out)
        assert played.mazes_digest == MazeSet.digest_of(mazes)
        lines = (held_out.output / "episodes.jsonl").read_text().splitlines()
        assert [json.loads(line)["seed"] for line in lines] == [maze.seed for maze in mazes]
    assert model.models == ["adapter"] * (64 + 3 + 3)


def test_without_an_adapter_the_base_plays(tmp_path: Path, model: Model) -> None:
    job = make_job(tmp_path, adapter=None, held_out=())
    play_sets(job, model.url, 0.0)
    assert set(model.models) == {"base"}
    assert server_plan(job).adapters == {}


def test_what_has_a_summary_is_not_played_again(tmp_path: Path, model: Model) -> None:
    job = make_job(tmp_path)
    play_sets(job, model.url, 0.0)
    (job.held_out[1].output / "summary.json").unlink()
    model.models.clear()
    play_sets(job, model.url, 0.0)
    assert len(model.models) == 3
    play_sets(job, model.url, 0.0)
    assert len(model.models) == 3


def test_a_server_that_fails_leaves_no_summary(tmp_path: Path, model: Model) -> None:
    job = make_job(tmp_path)
    for status in (400, 500):
        model.status = status
        with pytest.raises(httpx.HTTPStatusError):
            play_sets(job, model.url, 0.0)
        assert not (job.output / "summary.json").exists()


def test_a_held_out_maze_too_large_for_the_context_is_lost_and_no_error(
    tmp_path: Path, model: Model
) -> None:
    model.too_long = ("9 by 9",)
    job = make_job(tmp_path)
    play_sets(job, model.url, 0.0)
    assert summary(job.output).num_mazes == 64
    larger = summary(job.held_out[1].output)
    assert set(larger.ends) == {"out of context"} and larger.num_solved == 0


def test_a_server_that_fails_at_held_out_mazes_is_an_error(tmp_path: Path, model: Model) -> None:
    job = make_job(tmp_path)
    play_sets(job.model_copy(update={"held_out": ()}), model.url, 0.0)
    model.status = 500
    with pytest.raises(httpx.HTTPStatusError):
        play_sets(job, model.url, 0.0)
    assert not (job.held_out[0].output / "summary.json").exists()
