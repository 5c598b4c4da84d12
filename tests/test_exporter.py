"""The exporter over a run that was recorded from a real one."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from configs.serving import Probe, ServedAdapter, Serving
from tasks.home import Home
from tasks.metrics.catalogue import CATALOGUE
from tasks.metrics.exporter import NEWEST_RUNS, RunsCollector
from tasks.metrics.followed import FollowedRun
from tasks.metrics.pipeline import pipeline_samples
from tasks.metrics.training import training_samples
from tasks.run_dir import Run
from tests.watched_home import (
    ADAPTER,
    Door,
    add_attempt,
    add_step,
    door,
    end_attempt,
    exporter,
    host,
    judge,
    last_line,
    new_home,
    recorded_run,
    take_turn,
)

Values = dict[tuple[str, ...], float]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return new_home(tmp_path)


@pytest.fixture
def run(tmp_path: Path, home: Home) -> Run:
    return recorded_run(tmp_path, home)


@pytest.fixture
def at_the_door() -> Iterator[Door]:
    with door() as found:
        yield found


def scrape(port: int) -> str:
    return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).raise_for_status().text


def read(home: Home) -> Values:
    """Name and label values, in the catalogue's order of labels, to the value."""
    with exporter(home) as port:
        return parse(scrape(port))


def parse(text: str) -> Values:
    labels = {metric.name: metric.labels for metric in CATALOGUE}
    return {
        (sample.name, *(sample.labels[label] for label in labels[sample.name])): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_newest_step_and_the_sums_are_those_of_the_file(home: Home, run: Run) -> None:
    values, last = read(home), last_line(run).values
    assert values["ariadne_train_step", "recorded"] == 4
    assert values["ariadne_train_success_ratio", "recorded"] == last["environment/success"]
    gap = last["policy/rollout_train_logprobs_abs_diff_mean"]
    assert values["ariadne_train_logprob_gap_nats", "recorded"] == gap > 0
    assert values["ariadne_rollout_episodes_total", "recorded"] == 4 * 16
    lines = list(run.follow_steps().read())
    generated_s = sum(line.values["timing/generate"] for line in lines)
    spent_s = values["ariadne_train_phase_seconds_total", "recorded", "generate"]
    assert spent_s == pytest.approx(generated_s)
    phases = [v for key, v in values.items() if key[0] == "ariadne_train_phase_seconds_total"]
    assert sum(phases) == pytest.approx(sum(line.values["timing/step"] for line in lines))


def test_a_failure_is_counted_by_its_class_and_costs_what_the_files_say(
    home: Home, run: Run
) -> None:
    values = read(home)
    failures = {
        key[2]: v for key, v in values.items() if key[0] == "ariadne_attempt_failures_total"
    }
    assert failures.pop("loss not finite") == 1
    assert set(failures.values()) == {0}
    assert values["ariadne_attempts_total", "recorded"] == 2
    assert values["ariadne_recoveries_total", "recorded"] == 1
    # As recorded: attempt 1 ended at 14:45:35.927, step 3 at 1796136373.176.
    resumed_s = 1796136373.176 - datetime(2026, 12, 1, 14, 45, 35, 926939, UTC).timestamp()
    assert values["ariadne_recovery_duration_seconds", "recorded"] == pytest.approx(resumed_s)
    step_2, step_3 = list(run.follow_steps().read())[1:3]
    lost_s = (step_3.wall_time_ms - step_2.wall_time_ms) / 1000 - step_3.values["timing/step"]
    assert values["ariadne_lost_seconds_total", "recorded"] == pytest.approx(lost_s)
    held = values["ariadne_device_seconds_total", "recorded", "core"]
    lost = values["ariadne_device_lost_seconds_total", "recorded", "core"]
    cores = run.config.cluster.cpus_per_worker
    assert 0 < lost < held == pytest.approx((46.741867 + 46.096903) * cores)
    assert values["ariadne_cost_dollars_total", "recorded"] == pytest.approx(
        held / cores / 3600 * 2.5
    )


def test_the_gate_is_told_with_its_interval(home: Home, run: Run) -> None:
    judge(run)
    values = read(home)
    assert values["ariadne_gate_success_ratio", "recorded"] == 55 / 64
    assert values["ariadne_gate_success_bound_ratio", "recorded", "low"] == 0.754
    assert values["ariadne_gate_success_bound_ratio", "recorded", "high"] == 0.924
    assert values["ariadne_gate_base_success_ratio", "recorded"] == 29 / 64
    assert values["ariadne_gate_held_out_success_ratio", "recorded", "7x7"] == 7 / 8


def test_the_stage_is_the_first_without_a_record_and_training_while_an_attempt_is_open(
    home: Home, run: Run
) -> None:
    def stage() -> str:
        now = [key[2] for key, v in read(home).items() if key[0] == "ariadne_run_stage" and v]
        assert len(now) == 1
        return now[0]

    assert stage() == "image"
    for name in ("image", "cluster", "train"):
        run.records.mkdir(exist_ok=True)
        (run.records / f"{name}.json").write_text("{}")
    assert stage() == "evaluate"
    add_attempt(run, datetime.now(UTC))
    assert stage() == "train"


def test_a_run_is_active_while_the_process_of_its_turn_lives(home: Home, run: Run) -> None:
    assert read(home)["ariadne_run_active", "recorded"] == 0
    turn = take_turn(run)
    assert read(home)["ariadne_run_active", "recorded"] == 1
    turn.write_text(turn.read_text().replace(f'"pid": {os.getpid()}', '"pid": 999999999'))
    assert read(home)["ariadne_run_active", "recorded"] == 0


def test_a_new_attempt_has_the_time_to_its_first_step_and_then_that_of_the_watchdog(
    home: Home, run: Run
) -> None:
    started = datetime.now(UTC)
    attempt = add_attempt(run, started)
    values = read(home)
    assert values["ariadne_train_stall_limit_seconds", "recorded"] == 1800
    progress = values["ariadne_train_progress_timestamp_seconds", "recorded"]
    assert progress == pytest.approx(started.timestamp())
    add_step(run, attempt.number, timing__step=60.0)
    assert read(home)["ariadne_train_stall_limit_seconds", "recorded"] == 300


def test_the_endpoint_serves_its_adapter_only_if_the_door_says_so(
    home: Home, run: Run, at_the_door: Door
) -> None:
    assert ("ariadne_endpoint_up",) not in read(home)
    host(home, run, at_the_door.port)
    values = read(home)
    assert values["ariadne_endpoint_up",] == values["ariadne_endpoint_serves_champion",] == 1
    assert values["ariadne_champion_info", "recorded", "4", ADAPTER[:12]] == 1
    assert values["ariadne_replica_in_flight_requests", "2"] == 2
    at_the_door.status = at_the_door.status.model_copy(update={"champion_digest": "c" * 64})
    assert read(home)["ariadne_endpoint_serves_champion",] == 0


def test_an_endpoint_that_is_away_is_down_and_ends_no_scrape(home: Home, run: Run) -> None:
    with door() as gone:
        host(home, run, gone.port)
    values = read(home)
    assert values["ariadne_endpoint_up",] == values["ariadne_endpoint_serves_champion",] == 0
    assert values["ariadne_source_up", "door"] == 0
    assert values["ariadne_train_step", "recorded"] == 4


def test_prefect_that_is_away_is_told(
    home: Home, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    values = read(home)
    assert values["ariadne_source_up", "prefect"] == 0
    assert ("ariadne_flow_runs", "waiting") not in values


def test_no_counter_of_a_run_ever_falls_whatever_happens_to_it(home: Home, run: Run) -> None:
    followed, before = FollowedRun(run), dict[tuple[str, ...], float]()

    def only_grows() -> dict[tuple[str, ...], float]:
        followed.look()
        samples = [*training_samples(followed), *pipeline_samples(followed)]
        after = {(s.metric.name, *s.labels): s.value for s in samples if s.metric.kind == "counter"}
        assert {key: value for key, value in before.items() if not after[key] >= value} == {}
        before.update(after)
        return after

    only_grows()
    add_attempt(run, datetime.now(UTC) - timedelta(seconds=90))
    only_grows()
    add_step(run, 3)
    only_grows()
    end_attempt(run, end_step=4, cause="killed", reason="killed")
    lost_s = only_grows()["ariadne_device_lost_seconds_total", "recorded", "core"]
    add_attempt(run, datetime.now(UTC))
    only_grows()
    line = last_line(run)  # step 5 is trained anew by attempt 4
    later = {"attempt": 4, "wall_time_ms": line.wall_time_ms + 30_000}
    with run.metrics.open("a") as file:
        file.write(line.model_copy(update=later).model_dump_json() + "\n")
    after = only_grows()
    assert after["ariadne_train_steps_repeated_total", "recorded"] == 1
    assert after["ariadne_device_lost_seconds_total", "recorded", "core"] > lost_s


def test_a_counter_that_the_clock_turned_back_stays_where_it_was(home: Home, run: Run) -> None:
    attempt = add_attempt(run, datetime.now(UTC) - timedelta(seconds=90))
    collector = RunsCollector(home)

    def held_s() -> float:
        families = {family.name: family for family in collector.collect()}
        return families["ariadne_device_seconds"].samples[0].value

    before = held_s()
    early = {"ended": attempt.started, "end_step": 4, "reason": "ended"}
    file = run.attempts / f"{attempt.number}.json"
    file.write_text(attempt.model_copy(update=early).model_dump_json())
    assert held_s() == before


def test_series_are_bounded_by_the_newest_runs(tmp_path: Path, home: Home) -> None:
    for number in range(NEWEST_RUNS + 2):
        run = recorded_run(tmp_path, home, f"run-{number}")
        os.utime(run.folder / "run.json", (1000 + number, 1000 + number))
    values = read(home)
    runs = {key[1] for key in values if key[0] == "ariadne_run_info"}
    assert runs == {f"run-{number}" for number in range(2, NEWEST_RUNS + 2)}
    assert values["ariadne_runs",] == NEWEST_RUNS + 2


def test_a_damaged_run_is_counted_and_hides_no_other(tmp_path: Path, home: Home, run: Run) -> None:
    damaged = recorded_run(tmp_path, home, "damaged")
    (damaged.attempts / "1.json").write_text("{")
    values = read(home)
    assert values["ariadne_runs_unreadable",] == 1
    assert values["ariadne_train_step", "recorded"] == 4
    assert ("ariadne_train_step", "damaged") not in values


def test_a_run_that_was_deleted_and_made_anew_is_read_from_its_beginning(
    tmp_path: Path, home: Home, run: Run
) -> None:
    add_step(run)
    with exporter(home) as port:
        assert parse(scrape(port))["ariadne_train_steps_trained_total", "recorded"] == 5
        shutil.rmtree(run.folder)
        recorded_run(tmp_path, home)
        scrape(port)
        assert parse(scrape(port))["ariadne_train_steps_trained_total", "recorded"] == 4


def test_a_line_that_is_being_written_waits_for_its_end(home: Home, run: Run) -> None:
    line = last_line(run).model_copy(update={"step": 5}).model_dump_json() + "\n"
    with exporter(home) as port, run.metrics.open("a") as file:
        file.write(line[:100])
        file.flush()
        assert parse(scrape(port))["ariadne_train_step", "recorded"] == 4
        file.write(line[100:])
        file.flush()
        assert parse(scrape(port))["ariadne_train_step", "recorded"] == 5


def test_a_scrape_changes_nothing_in_the_home(home: Home, run: Run, at_the_door: Door) -> None:
    host(home, run, at_the_door.port)

    def state() -> dict[str, tuple[int, int]]:
        return {str(f): (f.stat().st_mtime_ns, f.stat().st_size) for f in home.root.rglob("*")}

    before = state()
    read(home)
    assert state() == before


def test_promtool_finds_no_fault_in_names_and_types(
    home: Home, run: Run, at_the_door: Door
) -> None:
    judge(run)
    host(home, run, at_the_door.port)
    with exporter(home) as port:
        text = scrape(port)
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert checked.returncode == 0 and checked.stdout + checked.stderr == ""


def test_every_metric_of_the_catalogue_is_produced_by_this_home_or_says_why_not(
    home: Home, run: Run, at_the_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(run)
    host(home, run, at_the_door.port)
    without = {metric.name for metric in CATALOGUE} - {key[0] for key in read(home)}
    assert without == {
        "ariadne_train_kl_nats",  # train.kl_coefficient is 0
        "ariadne_flow_runs",  # no Prefect server here: see tests/test_services.py
    }


def test_model_servers_are_targets_of_their_own(
    home: Home, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = add_attempt(run, datetime.now(UTC))
    address = run.scratch(f"attempt-{attempt.number}") / "inference-server.address"
    address.write_text("127.0.0.1:4001\n")
    host(home, run, 5001)
    write_serving(home, run, Path("/run/model-server-1.sock"), Path("/run/model-server-2.sock"))
    with exporter(home) as port:
        scrape(port)
        found = httpx.get(f"http://127.0.0.1:{port}/targets", timeout=10).json()
    assert found == [
        *(
            {
                "targets": ["127.0.0.1:5001"],
                "labels": {
                    "serves": "hosting",
                    "instance": name,
                    "__metrics_path__": f"/metrics/{name}",
                },
            }
            for name in ("model-server-1", "model-server-2")
        ),
        {"targets": ["127.0.0.1:4001"], "labels": {"serves": "training"}},
    ]


def write_serving(home: Home, run: Run, *replicas: Path) -> None:
    probe = Probe(layout=run.mazes().mazes[0], replies=("x",), base_replies=("y",))
    wish = Serving(
        generation=1,
        alias="maze-solver",
        base_digest=run.file.base_digest,
        champion=ServedAdapter(digest=ADAPTER, folder=run.adapter_folder(4)),
        previous=None,
        probes=(probe,),
        replicas=replicas,
        mazes=run.config.mazes,
        max_action_tokens=8,
    )
    (home.hosting / "serving.json").write_text(wish.model_dump_json())


def test_a_scrape_of_ten_long_runs_costs_less_than_a_hundredth_of_its_interval(
    tmp_path: Path, home: Home, record_property: Callable[[str, object], None]
) -> None:
    for number in range(NEWEST_RUNS):
        run = recorded_run(tmp_path, home, f"run-{number}")
        line = last_line(run)
        with run.metrics.open("a") as file:
            for step in range(5, 505):
                file.write(line.model_copy(update={"step": step}).model_dump_json() + "\n")
    registry = CollectorRegistry()
    registry.register(RunsCollector(home))
    generate_latest(registry)
    took_s = []
    for _ in range(5):
        begin = time.process_time()
        generate_latest(registry)
        took_s.append(time.process_time() - begin)
    ratio = min(took_s) / 5  # seconds between scrapes, in configs/prometheus/local.yml
    record_property("cpu_of_a_scrape_to_its_interval", ratio)
    assert ratio < 0.01
