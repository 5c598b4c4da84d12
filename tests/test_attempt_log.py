"""The log of an attempt: every line once, in one place, bounded, without keys or colours."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tasks import attempt_log
from tasks.attempt_log import EARLIER, LOG, RAW_LOG, SERVER_LOG, AttemptLog, LogLine, read_log

RAY = (
    "2026-12-01 14:44:50,012\tINFO worker.py:1839 -- Connecting to existing Ray cluster\n"
    "\x1b[36m(FSDPPolicyWorker pid=71)\x1b[0m WARNING: no flash attention\n"
    "Traceback (most recent call last):\n"
    "FloatingPointError: step 3: policy/final_loss is not finite\n"
)


class GrowingJobs:
    """Jobs whose one log grows."""

    def __init__(self) -> None:
        self.text, self.asked = "", 0

    def logs(self, submission_id: str) -> str:
        self.asked += 1
        return f"{self.text}\n\n" if self.text else ""


@pytest.fixture
def jobs() -> GrowingJobs:
    return GrowingJobs()


@pytest.fixture
def log(jobs: Any, tmp_path: Path) -> AttemptLog:
    return AttemptLog(jobs, "run-attempt-1", tmp_path)


def look(log: AttemptLog) -> None:
    """Have it look, however soon after the last time."""
    log._look_at = 0
    log.poll()


def texts(folder: Path, source: str) -> list[str]:
    return [line.text for line in read_log(folder) if line.source == source]


def test_lines_of_trainer_and_server_are_in_one_file_with_source_and_level(
    jobs: GrowingJobs, log: AttemptLog, tmp_path: Path
) -> None:
    jobs.text = RAY
    (tmp_path / SERVER_LOG).write_text("INFO 12-01 14:44 [api_server.py:1] vLLM API server\n")
    assert log.end() == f"{RAY}\n\n"
    lines = list(read_log(tmp_path))
    assert [(line.source, line.number, line.level) for line in lines] == [
        ("trainer", 1, "info"),
        ("trainer", 2, "warning"),
        ("trainer", 3, "error"),
        ("trainer", 4, "error"),
        ("server", 1, "info"),
    ]
    assert lines[1].text == "(FSDPPolicyWorker pid=71) WARNING: no flash attention"
    assert (tmp_path / RAW_LOG).read_text() == f"{RAY}\n\n"


def test_a_log_that_grows_is_read_line_by_line_and_each_line_once(
    jobs: GrowingJobs, log: AttemptLog, tmp_path: Path
) -> None:
    written = RAY * 3
    for end in range(0, len(written), 7):
        jobs.text = written[:end]
        look(log)
    jobs.text = written
    log.end()
    assert texts(tmp_path, "trainer") == [attempt_log.clean(line) for line in written.splitlines()]


def test_a_flow_that_takes_over_writes_only_what_is_missing(
    jobs: Any, log: AttemptLog, tmp_path: Path
) -> None:
    server = tmp_path / SERVER_LOG
    server.write_text("one\ntwo\n")
    jobs.text = "a\nb\nc\n"
    look(log)
    jobs.text += "d\n"
    with server.open("a") as file:
        file.write("three\n")
    AttemptLog(jobs, "run-attempt-1", tmp_path).end()
    assert texts(tmp_path, "trainer") == ["a", "b", "c", "d"]
    assert texts(tmp_path, "server") == ["one", "two", "three"]


def test_a_job_that_is_done_anew_in_the_same_place_has_its_lines_too(
    jobs: Any, log: AttemptLog, tmp_path: Path
) -> None:
    jobs.text = "a\nb\n"
    (tmp_path / SERVER_LOG).write_text("old\n")
    log.end()
    again = AttemptLog(jobs, "run-attempt-1", tmp_path, is_new=True)
    jobs.text = "c\n"
    with (tmp_path / SERVER_LOG).open("a") as file:
        file.write("new\n")
    again.end()
    assert texts(tmp_path, "trainer") == ["a", "b", "c"]
    assert texts(tmp_path, "server") == ["old", "new"]


def test_a_server_log_that_began_anew_is_followed(
    jobs: GrowingJobs, log: AttemptLog, tmp_path: Path
) -> None:
    (tmp_path / SERVER_LOG).write_text("a long first line\n")
    look(log)
    (tmp_path / SERVER_LOG).write_text("short\n")
    look(log)
    assert texts(tmp_path, "server") == ["a long first line", "short"]


def test_the_log_is_bounded(
    jobs: GrowingJobs, log: AttemptLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "_MAX_BYTES", 10_000)
    for number in range(300):
        jobs.text += f"step {number} took its time\n" * 3
        look(log)
    log.end()
    sizes = [(tmp_path / name).stat().st_size for name in (EARLIER, LOG, RAW_LOG)]
    assert all(0 < size < 11_000 for size in sizes)
    numbers = [line.number for line in read_log(tmp_path)]
    assert numbers[-1] == 900 and all(b - a == 1 for a, b in pairwise(numbers))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("VLLM_API_KEY=abcdefgh1234 started", "VLLM_API_KEY=*** started"),
        ("'aws_secret_access_key': 'wJalrXUtnFEMI/K7'", "'aws_secret_access_key': '***'"),
        ("Authorization: Bearer eyJhbGciOi.J9", "Authorization: Bearer ***"),
        ("see https://me:hunter2@index.invalid/simple", "see https://***@index.invalid/simple"),
        ("login with hf_abcdefghijklmnopqrst", "login with ***"),
        ("max_tokens=4096 token ids", "max_tokens=4096 token ids"),
        ("generate/avg_assistant_tokens: 21.75", "generate/avg_assistant_tokens: 21.75"),
        ("Token indices sequence length is 9000", "Token indices sequence length is 9000"),
        ("tokenizer='/models/tiny-qwen3-vl'", "tokenizer='/models/tiny-qwen3-vl'"),
    ],
)
def test_keys_are_not_written_and_what_only_looks_like_one_is(line: str, shown: str) -> None:
    assert attempt_log.clean(line) == shown


def test_no_line_is_longer_than_a_screen(
    jobs: GrowingJobs, log: AttemptLog, tmp_path: Path
) -> None:
    jobs.text = "x" * 1_000_000 + "\n"
    log.end()
    (line,) = read_log(tmp_path)
    assert len(line.text) == 400 and line.text.endswith(" ...")


def test_reading_takes_at_most_a_hundredth_of_the_time(jobs: Any, tmp_path: Path) -> None:
    now = [100.0]

    class SlowJobs(GrowingJobs):
        def logs(self, submission_id: str) -> str:
            now[0] += 2
            return super().logs(submission_id)

    slow: Any = SlowJobs()
    log = AttemptLog(slow, "run-attempt-1", tmp_path, clock=lambda: now[0])
    for _ in range(1000):
        log.poll()
        now[0] += 1
    assert slow.asked * 2 <= 0.01 * (now[0] - 100) + 2


def test_a_folder_that_takes_nothing_ends_no_training(
    jobs: GrowingJobs, log: AttemptLog, tmp_path: Path
) -> None:
    (tmp_path / LOG).mkdir()
    (tmp_path / RAW_LOG).mkdir()
    jobs.text = RAY
    look(log)
    assert log.end().startswith(RAY)


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    whole = '{"time":"2026-12-01T14:44:50Z","source":"server","number":1,"level":"info","text":"a"}'
    (tmp_path / LOG).write_text(f'{whole}\n{{"time":"2026-12\n')
    assert [line.text for line in read_log(tmp_path)] == ["a"]
    assert isinstance(attempt_log.parse(whole), LogLine)
