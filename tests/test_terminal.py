"""What a terminal shows of runs, with somebody in front of it and without."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger
from rich.cells import cell_len
from rich.console import Console

from configs.loader import ROOT
from flows.terminal import RunView, describe_home, describe_run, live_view, plain
from tasks import attempts
from tasks.backends.object_store import FileStore
from tasks.check import train_job
from tasks.cluster import ensure_cluster
from tasks.context import Context
from tasks.home import Home
from tasks.progress import Watch
from tests.fakes import IMAGE
from tests.homes import ariadne
from tests.samples import make_context, train_step, trains, without_waiting
from tests.test_progress import begin_turn, finish, image_is_there, record_run, train_with

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\x9b]")
LONG = "ValueError: " + "a very long story " * 40


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Six steps, a checkpoint after every second; the image is there."""
    without_waiting(monkeypatch)
    return image_is_there(make_context(tmp_path))


@pytest.fixture
def disturbed(context: Context) -> Context:
    """A run at work: its second attempt has trained steps 3 and 4 after the first one died."""
    with disable_run_logger():
        begin_turn(context, flow_run_id="f7")
        ensure_cluster(context, IMAGE)
    for number, steps, cause in ((1, (1, 2, 3), "killed"), (2, (3, 4), None)):
        attempt = attempts.take_next(
            FileStore(context.run.attempts), context.run.run_id, "flow", number // 2 * 2
        )
        for step in steps:
            train_step(train_job(context.run, number), step, success=0.9375)
        if cause:
            attempts.end(context.run.attempts, attempt, 2, f"{cause}: {LONG}", cause)
    return context


def drawn(context: Context, width: int) -> str:
    """As a terminal of that width shows it."""
    console = Console(
        force_terminal=True, width=width, color_system="standard", legacy_windows=False
    )
    with console.capture() as capture:
        console.print(describe_run(Watch(context.run).look()))
    return capture.get()


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_has_colours_a_bar_and_the_causes_of_failures(disturbed: Context) -> None:
    text = drawn(disturbed, width=120)
    assert "\x1b[" in text and "━" in text
    lines = [line.rstrip() for line in bare(text).splitlines()]
    assert lines[0] == f"run {disturbed.run.run_id}  running"
    assert lines[3].startswith("  train     running  ━")
    assert lines[3].endswith("step 4 of 6, 2 s left, batch success 94%, 1 s a step")
    assert lines[7].startswith("  attempt 1  from step 0 to 2  killed: ValueError: a very long")
    assert lines[7].endswith("…") and lines[8] == "  attempt 2  from step 2       goes on"


@pytest.mark.parametrize("width", [30, 45, 80, 132, 400])
def test_no_line_is_wider_than_the_terminal(disturbed: Context, width: int) -> None:
    lines = bare(drawn(disturbed, width)).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) == 9 and "train" in lines[3]


def test_without_a_terminal_lines_are_plain_and_whole(disturbed: Context) -> None:
    text = plain(describe_run(Watch(disturbed.run).look()))
    assert not CONTROL.search(text) and "━" not in text
    assert "step 4 of 6, 2 s left, batch success 94%" in text
    assert LONG.strip() in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_readme_shows_what_a_terminal_shows(tmp_path: Path) -> None:
    context = image_is_there(make_context(tmp_path, train__steps=4))
    record_run(context, up_to_step=3)
    with disable_run_logger():
        begin_turn(context)
        ensure_cluster(context, IMAGE)
    lines = [line.rstrip() for line in bare(drawn(context, width=100)).splitlines()]
    block = "\n".join(f"    {line}" for line in lines[1:])  # the first one has the run's name
    assert block in (ROOT / "README.md").read_text(), f"the terminal shows:\n{block}"


def test_the_newest_runs_come_with_what_came_of_them(context: Context) -> None:
    train_with(context, trains(to=6))
    finish(context, 60)
    text = plain(describe_home(context.home))
    row = next(line for line in text.splitlines() if " of 64 " in line and "before" not in line)
    assert row.split()[:2] == [context.run.run_id, "hosted"]
    assert "6 of 6" in row and "50%" in row and "60 of 64" in row and "yes" in row
    url = f"http://127.0.0.1:{context.config.host.port}/v1"
    assert f"serves   {url} as maze-solver, step 6 of {context.run.run_id}" in text
    assert f"files    {context.run.folder}" in text


def test_a_damaged_run_does_not_hide_the_others(context: Context, tmp_path: Path) -> None:
    other = make_context(tmp_path, train__seed=7)
    other.run.attempts.mkdir()
    (other.run.attempts / "1.json").write_text("{")
    text = plain(describe_home(context.home))
    assert context.run.run_id in text and other.run.run_id not in text


def test_a_home_without_runs_names_the_command_that_makes_one(tmp_path: Path) -> None:
    assert (
        plain(describe_home(Home(tmp_path).create())) == "no runs yet: `make run` starts the first"
    )


def test_a_view_finds_its_run_once_the_flow_has_its_turn(disturbed: Context) -> None:
    view = RunView(disturbed.home, "f8")
    assert disturbed.run.run_id not in plain(view)
    begin_turn(disturbed, flow_run_id="f8")
    view._look_at = 0
    assert disturbed.run.run_id in plain(view)
    (disturbed.run.attempts / "1.json").write_text("{")
    view._look_at = 0
    assert disturbed.run.run_id in plain(view)


def test_a_pipe_gets_nothing_from_the_view(
    disturbed: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    with live_view(console, disturbed.home, "f7"):
        console.print("train: step 1 of 6")
    assert capsys.readouterr().out == "train: step 1 of 6\n"


def test_status_is_plain_in_a_pipe_and_says_that_services_are_down(disturbed: Context) -> None:
    done = ariadne(disturbed.home, "status", timeout_s=60)
    assert done.returncode == 3, done.stderr
    assert not CONTROL.search(done.stdout)
    assert "prefect-server" in done.stdout and disturbed.run.run_id in done.stdout


FOLLOWED = """
import sys, time
from types import SimpleNamespace
from flows import __main__, operate
from tasks import deployments

def follow(run_id, say):
    for step in range(1, 1000):
        say(f"train: step {step} of 6 [/no markup]")
        time.sleep(0.05)
    return "Completed"

operate.check_inputs = lambda parameters: None
operate.bring_up = lambda home, say: SimpleNamespace(prefect_ui_url="http://prefect")
deployments.start = lambda name, parameters: ("f7", "kind-crow")
deployments.follow = follow
sys.argv = ["flows", "run", "--profile", "smoke"]
__main__.main()
"""
"""`make run` whose flow never ends; services and server aside, all of it is real."""


@contextmanager
def in_terminal(home: Home, code: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run code with a terminal of 100 columns; yields it and the terminal's other end."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**environment, "ARIADNE_HOME": str(home.root)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(timeout=10)
        os.close(ours)


def read_until(terminal: int, holds: Callable[[str], bool], timeout_s: float = 30) -> str:
    text, deadline = "", time.monotonic() + timeout_s
    while not holds(text):
        assert time.monotonic() < deadline, text[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the program has closed its end
                assert holds(text), text[-2000:]
    return text


def test_control_c_leaves_the_run_alone_and_says_so(disturbed: Context) -> None:
    with in_terminal(disturbed.home, FOLLOWED) as (process, terminal):
        shown = read_until(
            terminal, lambda text: "━" in text and "step 3 of 6 [/no markup]" in text
        )
        os.write(terminal, b"\x03")
        shown += read_until(terminal, lambda text: "follows it to its end" in bare(text))
        assert process.wait(timeout=20) == 130
    assert "the run goes on without this terminal" in bare(shown)
    assert "http://prefect/runs/flow-run/f7" in bare(shown)
    assert "Traceback" not in shown and "Aborted" not in shown
    assert shown.rstrip().count("\x1b[?25h") == shown.count("\x1b[?25l")  # the cursor is back
    assert disturbed.run.run_id in bare(shown)
