"""The logs that `make logs` follows."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import logs
from flows.logs import log_files, show_logs
from tasks.attempt_log import EARLIER, LOG, AttemptLog
from tasks.home import Home
from tests.samples import reason
from tests.test_attempt_log import GrowingJobs
from tests.waiting import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def write(file: Path, age_s: float) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("a line\n")
    os.utime(file, (1e9 - age_s, 1e9 - age_s))
    return file


def attempt(home: Home, number: int, text: str) -> Path:
    """An attempt whose job has said `text`."""
    scratch = home.runs / "new" / "scratch" / f"attempt-{number}"
    scratch.mkdir(parents=True, exist_ok=True)
    jobs: Any = GrowingJobs()
    jobs.text = text
    AttemptLog(jobs, "job", scratch).end()
    return scratch / LOG


def test_services_and_the_newest_job_of_the_newest_run_are_followed(home: Home) -> None:
    service = home.logs / "mlflow.log"
    service.write_text("up\n")
    write(home.runs / "old" / "scratch" / "attempt-9" / LOG, age_s=50)
    write(home.runs / "new" / "scratch" / "attempt-1" / LOG, age_s=20)
    newest = write(home.runs / "new" / "scratch" / "attempt-2" / LOG, age_s=10)
    write(newest.with_name(EARLIER), age_s=15)
    assert log_files(home) == [service, newest]


def test_where_there_are_none_the_next_move_is_named(home: Home) -> None:
    assert reason(lambda: log_files(home)).startswith("there are no logs yet: `make run`")


def test_lines_say_who_said_them_and_have_no_colours(home: Home) -> None:
    (home.logs / "mlflow.log").write_text("one\n\x1b[31mtwo\x1b[0m\n    three\n")
    attempt(home, 2, "step 1 [/of] 3\n")
    said: list[str] = []
    show_logs(home, said.append, num_lines=2)
    assert said[:2] == ["mlflow            | two", "mlflow            |     three"]
    who, _, text = said[2].partition(" | ")
    assert who == "attempt-2 trainer" and text[8:] == " step 1 [/of] 3"


@pytest.fixture
def followed(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What somebody hears who follows the logs of the home."""
    said: list[str] = []
    stop = threading.Event()

    def pause(seconds: float) -> None:
        if stop.wait(0.01):
            raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", pause)
    (home.logs / "mlflow.log").write_text("old 1\nold 2\n")
    thread = threading.Thread(target=logs.follow_logs, args=(home, said.append, 1))
    thread.start()
    wait_until(lambda: said)
    yield said
    stop.set()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_what_is_added_is_followed_also_in_new_files_and_after_a_rotation(
    home: Home, followed: list[str]
) -> None:
    def heard(text: str) -> bool:
        return any(line.endswith(text) for line in followed)

    log = home.logs / "mlflow.log"
    with log.open("a") as file:
        file.write("half")
        file.flush()
        file.write(" a line\n")
    wait_until(lambda: heard("half a line"))
    log.rename(home.logs / "mlflow.log.1")
    log.write_text("rotated\n")
    wait_until(lambda: heard("rotated"))
    attempt(home, 1, "first attempt\n")
    wait_until(lambda: heard("first attempt"))
    attempt(home, 2, "second attempt\n")
    wait_until(lambda: heard("second attempt"))
    assert not heard("old 1") and heard("old 2")
    assert len(followed) == len(set(followed)) == 5
