"""Attempts: numbers rise, each is given once, and their ends say whether they were worth it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from configs.loader import ROOT
from tasks import attempts
from tasks.attempts import Attempt
from tasks.backends.object_store import FileStore

TAKE = """
import sys
from pathlib import Path
from tasks import attempts
from tasks.backends.object_store import FileStore
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    print(attempts.take_next(FileStore(Path(sys.argv[1])), "night", "flow", 0).number)
"""


def take(folder: Path, start_step: int = 0) -> Attempt:
    return attempts.take_next(FileStore(folder), "night", "brave-lynx", start_step)


def ended(folder: Path, start_step: int, end_step: int) -> Attempt:
    return attempts.end(folder, take(folder, start_step), end_step, "failed: out of memory")


def test_numbers_rise_from_one_and_name_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "attempts"
    taken = [take(folder, start_step=step) for step in (0, 4, 4)]
    assert [attempt.number for attempt in taken] == [1, 2, 3]
    assert [attempt.start_step for attempt in taken] == [0, 4, 4]
    assert taken[1].submission_id == "night-attempt-2"
    assert taken[1].flow_run == "brave-lynx"
    assert attempts.all_attempts(folder) == taken


def test_a_run_without_attempts_has_none(tmp_path: Path) -> None:
    assert attempts.all_attempts(tmp_path / "attempts") == []
    assert attempts.fruitless([]) == []


def test_the_tenth_attempt_comes_after_the_ninth(tmp_path: Path) -> None:
    assert [take(tmp_path).number for _ in range(11)] == list(range(1, 12))
    assert [each.number for each in attempts.all_attempts(tmp_path)] == list(range(1, 12))


def test_a_number_is_not_given_again_after_earlier_attempts_were_deleted(tmp_path: Path) -> None:
    for _ in range(3):
        take(tmp_path)
    (tmp_path / "1.json").unlink()
    assert take(tmp_path).number == 4


def test_processes_at_the_same_time_never_get_the_same_number(tmp_path: Path) -> None:
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(tmp_path), "25"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    assert all(taker.stdout and taker.stdout.readline() == "ready\n" for taker in takers)
    for taker in takers:
        assert taker.stdin
        taker.stdin.write("go\n")
        taker.stdin.flush()
    numbers = [int(word) for taker in takers for word in taker.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(1, 76))


def test_threads_at_the_same_time_never_get_the_same_number(tmp_path: Path) -> None:
    """As do two machines, on which two processes may have the same id."""
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: take(tmp_path).number, range(60)))
    assert sorted(taken) == list(range(1, 61))
    assert len(list(tmp_path.iterdir())) == 60


def test_an_end_is_recorded_with_its_reason(tmp_path: Path) -> None:
    first = take(tmp_path, start_step=2)
    assert first.ended is None and not first.progressed
    second = attempts.end(tmp_path, first, end_step=6, reason="failed: node died")
    assert attempts.all_attempts(tmp_path) == [second]
    assert second.ended is not None and second.ended >= second.started
    assert (second.end_step, second.reason, second.progressed) == (6, "failed: node died", True)
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([(0, 0)], 1),
        ([(0, 2)], 0),
        ([(0, 0), (0, 0), (0, 2)], 0),
        ([(0, 0), (0, 2), (2, 2), (2, 2)], 2),
        ([(0, 2), (2, 2), (2, 4), (4, 4)], 1),
        ([(4, 2)], 1),
    ],
)
def test_only_the_last_attempts_without_a_new_checkpoint_are_fruitless(
    tmp_path: Path, steps: list[tuple[int, int]], count: int
) -> None:
    for start_step, end_step in steps:
        ended(tmp_path, start_step, end_step)
    assert len(attempts.fruitless(attempts.all_attempts(tmp_path))) == count


def test_an_attempt_under_way_is_not_fruitless_yet(tmp_path: Path) -> None:
    ended(tmp_path, 0, 0)
    take(tmp_path)
    assert len(attempts.fruitless(attempts.all_attempts(tmp_path))) == 1
