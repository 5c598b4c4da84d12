"""What a process said last is in the error of the flow that lost it, short and without keys."""

import logging
from pathlib import Path
from typing import Any

import pytest

from containers.trainer.inference import await_health
from tasks import failures
from tasks.attempt_log import SERVER_LOG
from tasks.backends import environment
from tasks.backends.vllm_server import SERVER, VllmServer
from tasks.check import train_job
from tasks.context import Context
from tasks.evaluate import evaluate
from tasks.home import Home
from tasks.train import train
from tasks.words import last_lines, quote, telling_line
from tests.fakes import CLUSTER, IMAGE
from tests.samples import (
    commit_checkpoint,
    make_context,
    plays,
    publish_adapter,
    reason,
    trains,
    without_waiting,
)

OUT_OF_BLOCKS = "ValueError: No available memory for the cache blocks\n"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    without_waiting(monkeypatch)
    return make_context(tmp_path)


@pytest.fixture
def flow_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """What a flow logs, without a flow."""
    logger = logging.getLogger("a-flow")
    for module in ("train", "cluster", "track", "plays"):
        monkeypatch.setattr(f"tasks.{module}.get_run_logger", lambda: logger)
    caplog.set_level(logging.INFO)
    return caplog


def test_a_lost_training_job_has_its_last_lines_in_the_log_and_one_in_the_error(
    context: Context, flow_log: Any
) -> None:
    jobs: Any = context.backends.jobs(CLUSTER)
    jobs.output = (
        "step 1\nTraceback (most recent call last):\nValueError: HF_TOKEN=hf_abcdefghijkl\n"
    )
    jobs.programs = [trains(to=0, then="failed")] * 3
    line = reason(lambda: train.fn(context, IMAGE))
    assert "unknown failure: ValueError: HF_TOKEN=***. Next: read the job's log" in line
    (first, *_) = [r.getMessage() for r in flow_log.records if "last lines" in r.getMessage()]
    assert first.splitlines() == [
        "train: the last lines of attempt 1:",
        "    step 1",
        "    Traceback (most recent call last):",
        "    ValueError: HF_TOKEN=***",
    ]
    assert "hf_abc" not in flow_log.text


def test_a_lost_inference_server_speaks_in_the_error_of_the_training(
    context: Context, flow_log: Any
) -> None:
    jobs: Any = context.backends.jobs(CLUSTER)
    jobs.output = "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host\n"
    jobs.programs = [trains(to=0, then="failed")] * 3
    for number in (1, 2, 3):
        server = context.run.scratch(f"attempt-{number}") / SERVER_LOG
        server.write_text(f"INFO starting\n{OUT_OF_BLOCKS}INFO shutting down\n")
    line = reason(lambda: train.fn(context, IMAGE))
    assert f"lost inference server: {jobs.output.strip()} (the server: " in line
    assert f"(the server: {OUT_OF_BLOCKS.strip()})" in line


def test_an_evaluation_that_lost_its_server_says_what_the_server_said(
    context: Context, flow_log: Any
) -> None:
    job = train_job(context.run, 1)
    commit_checkpoint(job.checkpoints, 6, 1)
    adapter = publish_adapter(job, 6)
    jobs: Any = context.backends.jobs(CLUSTER)
    said = f"the inference server ended while starting: {OUT_OF_BLOCKS.strip()}; see log"
    jobs.output = f"RuntimeError: {said}\n"
    jobs.programs = [plays(0, then="failed")] * 3
    line = reason(lambda: evaluate.fn(context, IMAGE, adapter))
    assert line.startswith(f"the evaluation failed: lost inference server: RuntimeError: {said}.")
    assert "evaluate: the last lines of its job:" in flow_log.text


def test_an_environment_that_is_not_installed_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "no-such.lock"
    line = reason(lambda: environment._uv("pip", "sync", str(missing)))
    assert line.startswith("uv pip failed: ") and "no-such.lock" in line


def test_a_model_server_that_does_not_come_up_says_what_it_said(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    (home.logs / f"{SERVER}-1.log").write_text(f"INFO starting\n{OUT_OF_BLOCKS}")
    unused: Any = None
    model: Any = type("Model", (), {"num_replicas": 2})
    words = VllmServer(home, unused)._last_words(model)
    assert words == f"it said last: {OUT_OF_BLOCKS.strip()}; it said last: it printed nothing"


def test_a_server_that_ends_while_starting_is_quoted_by_the_trainer(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"INFO starting\n{OUT_OF_BLOCKS}INFO bye\n")

    class Ended:
        def poll(self) -> int:
            return 1

    ended: Any = Ended()
    line = reason(lambda: await_health("http://127.0.0.1:9", ended, log, timeout_s=5))
    assert line == (
        f"the inference server ended while starting: {OUT_OF_BLOCKS.strip()}; see {log}"
    )
    assert failures.classify("failed", line, has_moved=False) == failures.LOST_SERVER


@pytest.mark.parametrize("text", ["", "\n\n", "x" * 5_000_000, "a\n" * 1_000_000, "\x1b[2J\rb"])
def test_any_log_makes_a_short_quotation(text: str) -> None:
    assert len(last_lines(text)) <= 8
    assert len(quote(text)) < 8 * 420
    assert 0 < len(telling_line(text)) <= 400 and "\x1b" not in quote(text)
