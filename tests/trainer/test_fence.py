"""An attempt that has a successor writes nothing."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import containers.trainer.cpu_device  # noqa: F401  before SkyRL
from configs.jobs import TrainJob
from configs.loader import load_config
from containers.trainer.checkpoints import committed_steps
from containers.trainer.fence import Fence, Superseded
from containers.trainer.notice import Interrupted, Notice
from containers.trainer.recorder import Recorder, check_finite


def take(attempts: Path, number: int) -> None:
    attempts.mkdir(exist_ok=True)
    (attempts / f"{number}.json").write_text("{}")


def make_job(folder: Path, attempt: int) -> TrainJob:
    return TrainJob(
        run_id="smoke-0",
        attempt=attempt,
        config=load_config("smoke"),
        base_digest="0" * 64,
        checkpoints=folder / "checkpoints",
        adapters=folder / "adapters",
        metrics=folder / "metrics.jsonl",
        attempts=folder / "attempts",
        scratch=folder / "scratch",
    )


def logged(step: int, **values: float) -> Any:
    return SimpleNamespace(global_step=step, logs=values, ckpt_path=None)


def test_the_newest_attempt_passes_and_an_older_one_leaves(tmp_path: Path) -> None:
    take(tmp_path / "a", 9)
    take(tmp_path / "a", 10)
    Fence(tmp_path / "a", 10).check()
    with pytest.raises(Superseded, match="attempt 9 is superseded by attempt 10"):
        Fence(tmp_path / "a", 9).check()


def test_a_superseded_recorder_adds_no_line_and_commits_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path, attempt=1)
    take(job.attempts, 1)
    recorder: Any = Recorder(job, Notice())
    recorder.on_log(None, logged(1, reward=0.5), None)
    written = job.metrics.read_bytes()
    assert written.count(b"\n") == 1

    unfinished = job.checkpoints / "global_step_2"
    unfinished.mkdir(parents=True)
    (unfinished / "weights.pt").write_bytes(b"weights")
    saved = SimpleNamespace(global_step=2, logs=None, ckpt_path=str(unfinished))
    recorder.on_save(None, saved, None)
    take(job.attempts, 2)
    for event in (recorder.on_log, recorder.on_train_end):
        with pytest.raises(Superseded):
            event(None, logged(2, reward=0.5), None)
    assert job.metrics.read_bytes() == written
    assert sorted(path.name for path in unfinished.iterdir()) == ["weights.pt"]
    assert not job.adapters.exists()


def test_the_best_checkpoint_outlives_newer_ones_in_a_later_attempt_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("containers.trainer.recorder.publish", lambda *_: None)
    for attempt, successes in [(1, {1: 0.2, 2: 0.9}), (2, {3: 0.4, 4: 0.5, 5: 0.3})]:
        job = make_job(tmp_path, attempt)
        take(job.attempts, attempt)
        recorder: Any = Recorder(job, Notice())
        for step, success in successes.items():
            folder = job.checkpoints / f"global_step_{step}"
            folder.mkdir(parents=True)
            saved = SimpleNamespace(global_step=step, logs=None, ckpt_path=str(folder))
            recorder.on_save(None, saved, None)
            recorder.on_log(None, logged(step, **{"environment/success": success}), None)
    assert committed_steps(job.checkpoints) == [2, 4, 5]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_no_history(tmp_path: Path, value: float) -> None:
    job = make_job(tmp_path, attempt=1)
    take(job.attempts, 1)
    recorder: Any = Recorder(job, Notice())
    bad = SimpleNamespace(global_step=3, logs={"policy/grad_norm": value}, ckpt_path=None)
    with pytest.raises(FloatingPointError, match="step 3: policy/grad_norm is not finite"):
        recorder.on_log(None, bad, None)
    assert not job.metrics.exists()


def test_finite_values_and_unknown_ones_pass() -> None:
    check_finite(1, {"policy/grad_norm": 1e6, "something/else": float("nan")})


def test_a_notice_has_the_step_at_hand_saved_and_then_ends_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("containers.trainer.recorder.publish", lambda *_: None)
    job, notice = make_job(tmp_path, attempt=1), Notice()
    take(job.attempts, 1)
    recorder: Any = Recorder(job, notice)
    control = SimpleNamespace(should_save=False)
    recorder.on_step_end(None, logged(1), control)
    assert not control.should_save

    before = signal.getsignal(signal.SIGTERM)
    notice.listen()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        recorder.on_step_end(None, logged(1), control)
        assert control.should_save
    finally:
        signal.signal(signal.SIGTERM, before)
    folder = job.checkpoints / "global_step_1"
    folder.mkdir(parents=True)
    recorder.on_save(None, SimpleNamespace(global_step=1, ckpt_path=str(folder)), None)
    with pytest.raises(Interrupted, match="after step 1, which is saved"):
        recorder.on_log(None, logged(1), None)
    assert committed_steps(job.checkpoints) == [1]
