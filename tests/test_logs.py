"""The logs that `make logs` follows."""

import os
from pathlib import Path

import pytest

from flows.operate import log_files
from tasks.home import Home
from tests.samples import reason


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def write(file: Path, age_s: float) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("a line\n")
    for path in (file.parent, file.parent.parent):
        os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return file


def test_services_and_the_newest_job_of_the_newest_run_are_followed(home: Home) -> None:
    service = home.logs / "mlflow.log"
    service.write_text("up\n")
    write(home.runs / "old" / "scratch" / "attempt-9" / "job.log", age_s=50)
    write(home.runs / "new" / "scratch" / "attempt-1" / "job.log", age_s=20)
    newest = write(home.runs / "new" / "scratch" / "attempt-2" / "job.log", age_s=10)
    assert log_files(home) == sorted([service, newest])


def test_where_there_are_none_the_next_move_is_named(home: Home) -> None:
    assert reason(lambda: log_files(home)).startswith("there are no logs yet: `make run`")
