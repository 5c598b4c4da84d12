"""Turns: one flow works on a run at a time, and one that was taken over writes nothing."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from prefect.logging import disable_run_logger

from tasks import turn as turns
from tasks.context import Context
from tasks.holder import Turn, read_turn
from tasks.run_dir import Run
from tasks.turn import (
    Superseded,
    check_turn,
    end_past_self,
    idle,
    turn,
    turn_of_this_process,
)
from tests.samples import make_context
from tests.waiting import wait_until


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


def child(flow_run_id: str | None) -> subprocess.Popen[bytes]:
    """A process that waits, perhaps one of a flow run."""
    environment = {**os.environ, **({turns._OWNED: flow_run_id} if flow_run_id else {})}
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, env=environment)


def turn_of(process: subprocess.Popen[bytes]) -> Turn:
    started = psutil.Process(process.pid).create_time()
    mine = turn_of_this_process()
    return mine.model_copy(update={"pid": process.pid, "started": started})


def test_whoever_has_the_turn_may_write_and_leaves_it_to_the_next(context: Context) -> None:
    check_turn(context.run)  # nobody has had it yet
    with turn(context.run):
        assert not is_idle(context.run)
        check_turn(context.run)
    assert is_idle(context.run)
    check_turn(context.run)


def is_idle(run: Run) -> bool:
    with idle(run) as found:
        return found


def test_a_second_flow_waits_for_the_first(context: Context) -> None:
    order: list[str] = []

    def second() -> None:
        with disable_run_logger(), turn(context.run):
            order.append("second")

    with turn(context.run):
        waiting = threading.Thread(target=second)
        waiting.start()
        order.append("first")
    waiting.join(30)
    assert order == ["first", "second"]


def test_one_that_was_taken_over_is_told_by_whom(context: Context) -> None:
    with turn(context.run):
        other = turn_of_this_process().model_copy(update={"flow_run_id": "f7", "token": "other"})
        (context.run.folder / "turn.json").write_text(other.model_dump_json())
        with pytest.raises(Superseded, match="taken over by flow run f7"):
            check_turn(context.run)


def test_a_half_written_turn_is_nobodys(context: Context) -> None:
    (context.run.folder / "turn.json").write_text('{"flow_run_id": ')
    assert read_turn(context.run) is None
    check_turn(context.run)


def test_a_past_process_of_the_same_flow_run_is_ended() -> None:
    process = child("any")
    wait_until(lambda: turns._OWNED in psutil.Process(process.pid).environ())
    end_past_self(turn_of(process))
    assert process.wait(30) == -9


@pytest.mark.parametrize(
    "change",
    [{"flow_run_id": "another"}, {"host": "another"}, {"started": 1.0}, {"pid": 2**22 - 1}],
)
def test_every_other_process_is_left_alone(change: dict[str, object]) -> None:
    process = child("any")
    try:
        end_past_self(turn_of(process).model_copy(update=change))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_no_flow_is_left_alone() -> None:
    process = child(None)
    try:
        end_past_self(turn_of(process))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    finally:
        process.kill()
        process.wait()
