"""Where a run stands and what happened to it, from files as stages and trainer write them."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.loader import ROOT
from tasks import attempts, records
from tasks.backends.object_store import FileStore
from tasks.check import train_job
from tasks.cluster import ensure_cluster
from tasks.context import Context
from tasks.evaluate import evaluate
from tasks.gate import judge
from tasks.holder import Turn, turn_file
from tasks.host import host_adapter
from tasks.progress import Progress, Watch, duration, newest_runs
from tasks.records import ImageRecord
from tasks.timeline import timeline
from tasks.train import train
from tasks.turn import turn_of_this_process
from tests.fakes import CLUSTER, IMAGE, FakeJobs, Program
from tests.samples import make_context, plays, train_step, trains, without_waiting


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Six steps, a checkpoint after every second; the image is there."""
    without_waiting(monkeypatch)
    return image_is_there(make_context(tmp_path, gate__min_success=0.5))


def image_is_there(context: Context) -> Context:
    record = ImageRecord(inputs=context.run.file.image_digest, image=IMAGE)
    records.save(record, context.run.records)
    return context


def record_run(context: Context, up_to_step: int) -> None:
    """Attempts and steps as a real run left them whose loss was made infinite in step 3.

    Four steps, a checkpoint each. At `up_to_step` below 4 its second attempt still trains.
    """
    source = ROOT / "tests" / "recorded" / "run"
    lines = (source / "metrics.jsonl").read_text().splitlines(keepends=True)
    context.run.metrics.write_text("".join(lines[:up_to_step]))
    context.run.attempts.mkdir()
    for number in (1, 2):
        known = attempts.Attempt.model_validate_json(
            (source / f"attempts/{number}.json").read_text()
        )
        if number == 2 and up_to_step < 4:
            open_again = {"ended": None, "end_step": None, "reason": None}
            known = known.model_copy(update=open_again)
        (context.run.attempts / f"{number}.json").write_text(known.model_dump_json())


def program(context: Context, *programs: Program) -> None:
    jobs = context.backends.jobs(CLUSTER)
    assert isinstance(jobs, FakeJobs)
    jobs.programs = list(programs)


def train_with(context: Context, *programs: Program) -> None:
    program(context, *programs)
    with disable_run_logger():
        train.fn(context, IMAGE)


def finish(context: Context, num_solved: int, step: int = 6) -> None:
    """Evaluate, judge, and host what is promoted."""
    program(context, plays(28), plays(num_solved))
    with disable_run_logger():
        scores = evaluate.fn(context, IMAGE, context.run.adapter(step))
        decision = judge.fn(context, scores)
        if decision.promoted:
            host_adapter.fn(context, IMAGE, decision)


def begin_turn(context: Context, **changes: object) -> None:
    turn = turn_of_this_process().model_copy(update=changes)
    turn_file(context.run).write_text(turn.model_dump_json())


def look(context: Context) -> Progress:
    return Watch(context.run).look()


def states(progress: Progress) -> dict[str, str]:
    return {stage.name: stage.state for stage in progress.stages}


def test_a_run_that_nobody_works_on_is_interrupted_at_its_first_gap(context: Context) -> None:
    progress = look(context)
    assert progress.standing == "interrupted"
    assert list(states(progress).values()) == ["done", "stopped", *["waiting"] * 4]


def test_a_run_at_work_is_in_training_with_a_guess_of_what_is_left(context: Context) -> None:
    program(context, trains(to=3, then="running"))
    attempts.take_next(FileStore(context.run.attempts), context.run.run_id, "flow", 0)
    begin_turn(context)
    with disable_run_logger():
        ensure_cluster(context, IMAGE)
    for step in (1, 2, 3):
        train_step(train_job(context.run, 1), step)
    progress = look(context)
    assert progress.standing == "running"
    assert list(states(progress).values()) == ["done", "done", "running", *["waiting"] * 3]
    train_stage = progress.stages[2]
    assert train_stage.detail == ("step 3 of 6, 3 s left, batch success 50%, 1 s a step")
    assert (train_stage.percent, progress.left_s) == (50.0, 3.0)


def test_a_cluster_of_an_earlier_flow_is_not_taken_for_this_ones(context: Context) -> None:
    with disable_run_logger():
        ensure_cluster(context, IMAGE)
    os.utime(context.run.records / "cluster.json", (1e9, 1e9))
    begin_turn(context)
    assert states(look(context))["cluster"] == "running"


@pytest.mark.parametrize(
    ("num_solved", "standing", "hosting"),
    [(60, "hosted", "done"), (20, "not promoted", "left out")],
)
def test_a_finished_run_says_what_came_of_it(
    context: Context, num_solved: int, standing: str, hosting: str
) -> None:
    train_with(context, trains(to=6))
    finish(context, num_solved)
    progress = look(context)
    assert progress.standing == standing
    assert list(states(progress).values()) == [*["done"] * 5, hosting]
    details = {stage.name: stage.detail for stage in progress.stages}
    assert details["evaluate"] == f"step 6: {num_solved} of 64 mazes, 28 before"
    assert details["gate"].startswith("promoted" if num_solved == 60 else "not promoted")


def test_training_that_gave_up_has_failed(context: Context) -> None:
    with pytest.raises(RuntimeError):
        train_with(context, *[trains(to=1, then="failed")] * 3)
    progress = look(context)
    assert progress.standing == "failed"
    assert states(progress)["train"] == "stopped"


def test_a_new_adapter_under_the_same_step_has_not_been_evaluated(context: Context) -> None:
    train_with(context, trains(to=6))
    finish(context, 60)
    file = context.run.records / "train.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps(known | {"adapter_digest": "f" * 64}))
    found = states(look(context))
    assert (found["train"], found["evaluate"], found["host"]) == ("done", "stopped", "waiting")


def test_a_flow_on_another_machine_works_while_its_attempt_is_open(context: Context) -> None:
    begin_turn(context, host="elsewhere")
    assert not look(context).at_work
    attempt = attempts.take_next(FileStore(context.run.attempts), context.run.run_id, "flow", 0)
    assert look(context).at_work
    attempts.end(context.run.attempts, attempt, 6, "succeeded")
    assert not look(context).at_work


def test_a_number_of_a_process_that_is_used_again_is_not_our_flow(context: Context) -> None:
    begin_turn(context, started=1.0)
    assert not look(context).at_work


def test_a_watch_reads_only_what_is_new_and_holds_the_last_steps_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(tmp_path, train__steps=500, train__checkpoint_every_steps=500)
    watch, job = Watch(context.run), train_job(context.run, 1)
    for step in range(1, 121):
        train_step(job, step)
        assert watch.look().step == step
    progress = watch.look()
    assert [line.step for line in progress.recent] == list(range(71, 121))
    assert progress.spans[1].first.step == 1


def test_the_timeline_tells_what_failed_what_was_lost_and_when_it_went_on(
    context: Context,
) -> None:
    begun = attempts.take_next(FileStore(context.run.attempts), context.run.run_id, "flow", 0)
    for step in (1, 2, 3):
        train_step(train_job(context.run, 1), step)
    attempts.end(context.run.attempts, begun, 2, "killed: exit code -9", "killed")
    file = context.run.attempts / "1.json"
    times = {"started": "1970-01-01T00:00:00Z", "ended": "1970-01-01T00:00:04Z"}
    file.write_text(json.dumps(json.loads(file.read_text()) | times))
    second = attempts.take_next(FileStore(context.run.attempts), context.run.run_id, "flow", 2)
    file = context.run.attempts / "2.json"
    times = {"started": "1970-01-01T00:00:05Z"}
    file.write_text(json.dumps(json.loads(file.read_text()) | times))
    line = {"step": 3, "attempt": second.number, "wall_time_ms": 43_000, "values": {}}
    with context.run.metrics.open("a") as metrics:
        metrics.write(json.dumps(line) + "\n")
    events = timeline(look(context))
    assert [(event.kind, event.what) for event in events[:-1]] == [
        ("attempt", "attempt 1 starts at the base"),
        ("failure", "attempt 1 ended: killed: exit code -9; 1 step lost, step 2 is kept"),
        ("attempt", "attempt 2 goes on from step 2"),
        ("recovery", "attempt 2 has trained step 3, 39 s after attempt 1 ended"),
    ]
    assert events[-1].what == f"image: {IMAGE.digest[:12]}"
    assert events[0].time == datetime.fromtimestamp(0, UTC)


def test_a_real_run_tells_how_its_second_attempt_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = image_is_there(make_context(tmp_path, train__steps=4))
    record_run(context, up_to_step=3)
    begin_turn(context)
    with disable_run_logger():
        ensure_cluster(context, IMAGE)
    progress = look(context)
    assert progress.stages[2].detail == ("step 3 of 4, 7 s left, batch success 88%, 7 s a step")
    told = [event.what for event in timeline(progress) if event.kind != "stage"]
    assert told == [
        "attempt 1 starts at the base",
        "attempt 1 ended: loss not finite: FloatingPointError: step 3: policy/final_loss is not "
        "finite; 0 steps lost, step 2 is kept",
        "attempt 2 goes on from step 2",
        "attempt 2 has trained step 3, 37 s after attempt 1 ended",
    ]


def test_a_run_that_was_disturbed_and_finished_has_one_line_for_each_event(
    context: Context,
) -> None:
    train_with(context, trains(to=3, then="failed"), trains(to=6))
    finish(context, 60)
    kinds = [event.kind for event in timeline(look(context))]
    assert sorted(kinds) == sorted(["stage"] * 6 + ["attempt"] * 3 + ["failure", "recovery"])


def test_the_newest_runs_come_first_and_unreadable_ones_not_at_all(tmp_path: Path) -> None:
    names = []
    for seed in (1, 2, 3):
        context = make_context(tmp_path, train__seed=seed)
        os.utime(context.run.folder / "run.json", (1e9 + seed, 1e9 + seed))
        names.append(context.run.run_id)
    odd = context.home.runs / "odd"
    shutil.copytree(context.run.folder, odd)
    (odd / "run.json").write_text('{"run_id": "odd", "of": "another version"}')
    assert [run.run_id for run in newest_runs(context.home, 2)] == names[:0:-1]


def test_to_look_loads_no_prefect() -> None:
    code = "import sys, tasks.timeline, flows.terminal; print('prefect' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (12_000, "3 h 20 min")],
)
def test_durations_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_turn_tells_its_own_process(context: Context) -> None:
    mine = turn_of_this_process()
    assert isinstance(mine, Turn) and mine.is_here
    process = mine.process()
    assert process is not None and process.pid == os.getpid()
    assert mine.model_copy(update={"host": "elsewhere"}).process() is None
