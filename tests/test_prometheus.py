"""A real Prometheus scrapes a recorded run: each panel has data, each alert fires and clears."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from PIL import Image

from configs.jobs import Committed
from tasks import track
from tasks.dashboards.files import DASHBOARDS
from tasks.dashboards.sheet import draw
from tasks.home import Home
from tasks.metrics.services import prometheus_config
from tasks.records import write_whole
from tasks.run_dir import Run
from tests.panels import check_panels
from tests.prometheus import alerts, query, running_prometheus
from tests.waiting import wait_until
from tests.watched_home import (
    RECORDED,
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
    serving,
    take_turn,
)

ALERTS = Path(__file__).parents[1] / "configs" / "prometheus" / "alerts.yml"
pytestmark = pytest.mark.timeout(180)


@dataclass
class Watched:
    """A home with its exporter, a door, and the Prometheus that scrapes them."""

    home: Home
    folder: Path
    door: Door
    url: str = ""
    exporter_port: int = 0
    exporter: ExitStack = field(default_factory=ExitStack)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Scraped and judged every half second by our own configuration, but for these times."""
    folder = tmp_path_factory.mktemp("watched")
    with ExitStack() as stack:
        at_the_door = stack.enter_context(door())
        it = Watched(new_home(folder), folder, at_the_door)
        run = recorded_run(folder, it.home)
        judge(run)
        host(it.home, run, at_the_door.port)
        stack.callback(lambda: it.exporter.close())
        it.exporter_port = it.exporter.enter_context(exporter(it.home))
        config = quick_config(folder, it.exporter_port, stack)
        it.url = stack.enter_context(running_prometheus(folder / "prometheus", config))
        yield it


def quick_config(folder: Path, exporter_port: int, stack: ExitStack) -> str:
    rules = re.sub(r"for: \w+", "for: 1s", ALERTS.read_text())
    (folder / "alerts.yml").write_text(rules)
    ray = folder / "ray.json"
    ray_port = stack.enter_context(serving(growing(RECORDED / "ray.prom")))
    ray.write_text(json.dumps([{"labels": {"job": "ray"}, "targets": [f"127.0.0.1:{ray_port}"]}]))
    config = prometheus_config(f"127.0.0.1:{exporter_port}", folder / "alerts.yml", ray)
    vllm_port = stack.enter_context(serving(growing(RECORDED / "vllm.prom")))
    settings = yaml.safe_load(re.sub(r"(interval|timeout): \w+", r"\1: 500ms", config))
    # The exporter is asked for model servers in its own tests; here one is known.
    vllm = next(job for job in settings["scrape_configs"] if job["job_name"] == "vllm")
    del vllm["http_sd_configs"]
    known = {"targets": [f"127.0.0.1:{vllm_port}"], "labels": {"serves": "hosting"}}
    vllm["static_configs"] = [known]
    return yaml.safe_dump(settings)


def growing(recorded: Path) -> Callable[[str], str]:
    """What was recorded, with counters that grow by half at each scrape."""
    scrapes = 0
    counters = re.compile(r"^(\S+(?:_total|_count|_sum|_bucket)(?:{.*})?) (\S+)$", re.MULTILINE)

    def answer(path: str) -> str:
        nonlocal scrapes
        scrapes += 1
        factor = 1 + scrapes / 2
        return counters.sub(lambda m: f"{m[1]} {float(m[2]) * factor}", recorded.read_text())

    return answer


def test_every_query_of_every_panel_has_data_of_the_right_shape_or_a_reason(
    watched: Watched,
) -> None:
    since = time.time() - 60
    up = "sum by (job) (up) and on (job) (count_over_time(up[1m]) >= 3)"
    wait_until(lambda: {s["metric"]["job"] for s in query(watched.url, up) if s["value"][1] == "1"}
               == {"ariadne", "vllm", "ray"})  # fmt: skip
    without = check_panels(watched.url, since, missing={"gpu", "kl", "prefect"}, step_s=1)
    assert sorted(without) == [
        "Ariadne: cluster and recovery / GPU memory in use (MB) / {{ip}} {{GpuIndex}}",
        "Ariadne: cluster and recovery / GPUs in use / {{ip}} {{GpuIndex}}",
        "Ariadne: run overview / Flow runs / {{state}}",
        "Ariadne: training health / KL to the base (nats) / {{run}}",
    ]


def test_the_sheet_is_a_picture_of_every_panel(watched: Watched, tmp_path: Path) -> None:
    wait_until(lambda: query(watched.url, "ariadne_train_step"))
    since = time.time() - 60
    for plan in DASHBOARDS:
        file = draw(plan, watched.url, since, ".*", tmp_path / plan.uid)
        with Image.open(file) as picture:
            colors = picture.convert("RGB").getcolors(maxcolors=1_000_000)
            assert picture.width > 1000 and colors and len(colors) > 50, plan.uid


def test_every_alert_is_made_to_fire_below() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    named = {rule["alert"] for group in groups for rule in group["rules"]}
    words = {name: re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in named}
    assert {
        name
        for name in named
        if not any(test.startswith(f"test_{words[name]}_") for test in globals())
    } == set()


def fires(watched: Watched, name: str) -> None:
    """This alert, and no other."""
    wait_until(lambda: name in alerts(watched.url))
    assert alerts(watched.url) == {name}


def clears(watched: Watched) -> None:
    wait_until(lambda: alerts(watched.url) == set())


@pytest.fixture
def run(watched: Watched) -> Iterator[Run]:
    """A run that nothing is wrong with, for the length of a test."""
    name = f"run-{uuid4().hex[:8]}"
    run = recorded_run(watched.folder, watched.home, name, train__steps=40)
    clears(watched)
    yield run
    shutil.rmtree(run.folder)


def test_training_stands_still_fires_and_clears_with_the_next_step(
    watched: Watched, run: Run
) -> None:
    add_attempt(run, datetime.now(UTC) - timedelta(days=1))
    fires(watched, "TrainingStandsStill")
    add_step(run, 3)
    clears(watched)


def test_success_falls_fires_and_clears_when_it_is_back(watched: Watched, run: Run) -> None:
    add_attempt(run, datetime.now(UTC))
    for success in (*[0.9] * 5, *[0.5] * 5):
        add_step(run, 3, environment__success=success)
    fires(watched, "SuccessFalls")
    for _ in range(5):
        add_step(run, 3, environment__success=0.9)
    clears(watched)


def test_trainer_and_server_differ_fires_beyond_the_gap_that_the_log_warns_of(
    watched: Watched, run: Run
) -> None:
    add_attempt(run, datetime.now(UTC))
    usual = last_line(run).values[track.GAP]
    add_step(run, 3, **{track.GAP: 1.01 * track.WIDEST_GAP_NATS})
    fires(watched, "TrainerAndServerDiffer")
    add_step(run, 3, **{track.GAP: 0.99 * track.WIDEST_GAP_NATS})
    clears(watched)
    assert usual < 0.01 * track.WIDEST_GAP_NATS


def test_training_fails_again_and_again_fires_and_clears_with_progress(
    watched: Watched, run: Run
) -> None:
    take_turn(run)
    for _ in range(2):
        add_attempt(run, datetime.now(UTC))
        end_attempt(run, end_step=4, cause="lost worker", reason="lost worker: it died")
    fires(watched, "TrainingFailsAgainAndAgain")
    add_attempt(run, datetime.now(UTC))
    end_attempt(run, end_step=5, cause="lost worker", reason="lost worker: it died")
    clears(watched)


def test_training_gave_up_fires_and_clears_when_a_flow_goes_on(watched: Watched, run: Run) -> None:
    add_attempt(run, datetime.now(UTC))
    end_attempt(run, end_step=4, cause="bad code", reason="bad code: NameError")
    fires(watched, "TrainingGaveUp")
    take_turn(run)
    clears(watched)


def test_disk_almost_full_fires_when_five_checkpoints_do_not_fit(
    watched: Watched, run: Run
) -> None:
    marker = run.checkpoints / "global_step_4" / "COMMITTED.json"
    committed = Committed.model_validate_json(marker.read_text())
    huge = {"weights.pt": shutil.disk_usage(run.folder).total}
    write_whole(marker, committed.model_copy(update={"sizes": huge}).model_dump_json())
    fires(watched, "DiskAlmostFull")
    write_whole(marker, committed.model_dump_json())
    clears(watched)


def test_endpoint_without_its_adapter_fires_and_clears_when_it_is_served(watched: Watched) -> None:
    clears(watched)
    right = watched.door.status
    watched.door.status = right.model_copy(update={"champion_digest": "c" * 64})
    fires(watched, "EndpointWithoutItsAdapter")
    watched.door.status = right
    clears(watched)


def test_exporter_away_fires_and_clears_when_it_is_back(watched: Watched) -> None:
    clears(watched)
    watched.exporter.close()
    fires(watched, "ExporterAway")
    watched.exporter.enter_context(exporter(watched.home, watched.exporter_port))
    clears(watched)
