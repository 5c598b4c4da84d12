"""The flow run's page while a run goes on: real artifacts of a real server, seen in a browser."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks import attempts, board_keeper
from tasks.attempt_log import AttemptLog
from tasks.backends.object_store import FileStore
from tasks.board import LINKS_KEY, STEPS_KEY, TIMELINE_KEY, Places, pieces_of
from tasks.board_keeper import _Keeper, live_page
from tasks.check import train_job
from tasks.context import Context
from tasks.progress import Watch
from tests.prefect_server import PrefectServer, prefect_server
from tests.samples import (
    commit_checkpoint,
    make_context,
    train_step,
    trains,
    without_waiting,
    write_adapter,
)
from tests.test_attempt_log import GrowingJobs, look
from tests.test_progress import finish, image_is_there, record_run, train_with
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(240)  # the server's first start is in it

MLFLOW = "http://127.0.0.1:5000/#/experiments/1/runs/2"
STAGES = [f"ariadne-stage-{n}" for n in ("image", "cluster", "train", "evaluate", "gate", "host")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Six steps, a checkpoint after every second; the image is there."""
    without_waiting(monkeypatch)
    monkeypatch.setattr(board_keeper, "_EVERY_S", 0.05)
    return image_is_there(make_context(tmp_path))


def shown(context: Context, *acts: Callable[[], object]) -> str:
    """A flow that does `acts`, each as one process of it would; the flow run's id."""

    @flow
    def watched() -> str:
        for act in acts:
            with live_page(context, MLFLOW):
                act()
        return str(flow_run.id)

    return watched()


def page(flow_run_id: str) -> dict[str, Artifact]:
    """The artifacts of a flow run by key; each has to be there once."""
    with get_client(sync_client=True) as client:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
        found = client.read_artifacts(artifact_filter=mine)
    keys = [artifact.key for artifact in found]
    assert len(keys) == len(set(keys)), keys
    return {str(artifact.key): artifact for artifact in found}


def rows(artifact: Artifact) -> list[dict[str, str]]:
    return json.loads(str(artifact.data))


def disturb(context: Context) -> None:
    """An attempt that dies in step 4, and one that trains to the end."""
    train_with(context, trains(to=4, then="failed"), trains(to=6))


def test_a_run_has_a_bar_for_each_stage_its_last_steps_its_timeline_and_links(
    context: Context, server: PrefectServer
) -> None:
    made = page(shown(context, lambda: (disturb(context), finish(context, 60))))
    assert [key for key in sorted(made) if "stage" in key] == sorted(STAGES)
    assert {float(str(made[key].data)) for key in STAGES} == {100.0}
    assert (
        made["ariadne-stage-evaluate"].description
        == "evaluate: done, step 6: 60 of 64 mazes, 28 before"
    )
    steps = rows(made[STEPS_KEY])
    assert [(row["step"], row["attempt"]) for row in steps][:3] == [
        ("6 of 6", "2"),
        ("5 of 6", "2"),
        ("4 of 6", "1"),
    ]
    assert steps[0] | {"trained (UTC)": ""} == {
        "step": "6 of 6",
        "success": "50.0%",
        "entropy": "-",
        "seconds": "1.0",
        "attempt": "2",
        "trained (UTC)": "",
    }
    kinds = [row["event"] for row in rows(made[TIMELINE_KEY])]
    assert "failure" in kinds and "recovery" in kinds
    links = str(made[LINKS_KEY].data)
    assert MLFLOW in links and str(context.run.folder) in links
    assert f"http://127.0.0.1:{context.config.host.port}/v1" in links


def test_a_flow_that_comes_back_goes_on_with_what_is_up(
    context: Context, server: PrefectServer
) -> None:
    def second() -> None:
        finish(context, 60)

    made = page(shown(context, lambda: disturb(context), second))
    assert len([key for key in made if key.startswith("ariadne-")]) == len(STAGES) + 3


def test_the_bar_of_training_moves_while_it_trains(context: Context, server: PrefectServer) -> None:
    seen: list[float] = []

    def trains_slowly() -> None:
        attempts.take_next(FileStore(context.run.attempts), context.run.run_id, "flow", 0)
        for step in (1, 2, 3):
            train_step(train_job(context.run, 1), step)
            seen.append(await_percent(round(100 * step / 6, 1)))

    made = page(shown(context, trains_slowly))
    assert seen == [16.7, 33.3, 50.0]
    # Nobody works on it any more, and it is not done.
    assert made["ariadne-stage-image"].description == "image: done, 111111111111"
    assert made["ariadne-stage-train"].description == (
        "train: waiting, step 3 of 6, batch success 50%"
    )


def await_percent(percent: float) -> float:
    mine = str(flow_run.id)
    wait_until(lambda: _percent(mine) == percent)
    return percent


def _percent(flow_run_id: str) -> float:
    made = page(flow_run_id)
    return float(str(made["ariadne-stage-train"].data)) if "ariadne-stage-train" in made else -1


def test_what_changes_all_the_time_is_sent_now_and_then_and_at_the_end(
    context: Context, server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    ask = SyncPrefectClient.request

    def count(self: SyncPrefectClient, method: str, path: Any, **rest: Any) -> Any:
        if "artifacts" in path:
            sent.append(method)
        return ask(self, method, path, **rest)  # ty: ignore[invalid-argument-type]

    monkeypatch.setattr(SyncPrefectClient, "request", count)
    monkeypatch.setattr(board_keeper, "_EVERY_S", 1.0)
    job = train_job(context.run, 1)

    def trains_fast() -> None:
        end = time.monotonic() + 2.5
        step = 0
        while time.monotonic() < end:
            step += 1
            train_step(job, step % 2 + 1) if step < 3 else _rewrite(context, step)
            time.sleep(0.01)

    flow_run_id = shown(context, trains_fast)
    # Asked what is up, nine come up; then at most two change in each of three rounds.
    assert sent.count("POST") == 1 + 9
    assert 2 <= sent.count("PATCH") <= 8
    made = page(flow_run_id)
    assert rows(made[STEPS_KEY])[0]["success"] == f"{_last_success(context):.1%}"


def _rewrite(context: Context, step: int) -> None:
    """One more line: the second step is trained again and again."""
    line = {
        "step": 2,
        "attempt": 1,
        "wall_time_ms": step,
        "values": {"environment/success": step / 1000},
    }
    with context.run.metrics.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _last_success(context: Context) -> float:
    return context.run.steps()[-1].values["environment/success"]


@pytest.fixture(params=["refuses", "hangs", "is another"])
def sick_server(request: pytest.FixtureRequest, server: PrefectServer) -> Iterator[str]:
    """The address of an API that is away in one way or the other."""
    if request.param == "is another":
        yield f"{server.url}/nowhere"
        return
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if request.param == "hangs":
            listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/api"


def test_a_server_that_is_away_holds_nothing_up(
    context: Context,
    server: PrefectServer,
    sick_server: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(board_keeper, "_REQUEST_TIMEOUT_S", 0.5)
    took: list[float] = []

    def work() -> None:
        began = time.monotonic()
        disturb(context)
        took.append(time.monotonic() - began)

    @flow
    def away() -> None:
        with temporary_settings(
            {PREFECT_API_URL: f"{server.url}/nowhere" if "nowhere" in sick_server else sick_server}
        ):
            began = time.monotonic()
            with live_page(context, MLFLOW):
                work()
            assert time.monotonic() - began < 10

    away()
    assert context.run.committed_step() == 6
    assert took[0] < 5
    warnings = [r for r in caplog.records if "the run is not shown for now" in r.getMessage()]
    assert len(warnings) == 1


def test_a_server_that_comes_back_is_shown_everything(
    context: Context, server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, refused, is_away = SyncPrefectClient.request, [], [True]

    def refuse_at_first(self: SyncPrefectClient, method: str, path: Any, **rest: Any) -> Any:
        if "artifacts" in path and is_away:
            refused.append(method)
            raise ConnectionError("no route to the server")
        return ask(self, method, path, **rest)  # ty: ignore[invalid-argument-type]

    def work() -> None:
        disturb(context)
        wait_until(lambda: len(refused) > 2)
        is_away.clear()

    monkeypatch.setattr(SyncPrefectClient, "request", refuse_at_first)
    made = page(shown(context, work))
    assert {*STAGES, STEPS_KEY, TIMELINE_KEY, LINKS_KEY} <= made.keys()


def test_grafana_is_linked_where_there_is_one(context: Context) -> None:
    pieces = pieces_of(Watch(context.run).look(), Places(MLFLOW, "https://grafana.example/"))
    (links,) = [piece.data for piece in pieces if piece.key == LINKS_KEY]
    address = f"https://grafana.example/d/ariadne-overview?var-run={context.run.run_id}"
    assert f"[Grafana: dashboards]({address})" in links


def test_all_of_it_takes_less_than_a_hundredth_of_the_time(
    tmp_path: Path, server: PrefectServer
) -> None:
    """Of the time of one core, in the flow's process; the trainer itself does nothing for it."""
    context = image_is_there(
        make_context(tmp_path, train__steps=2000, train__checkpoint_every_steps=2000)
    )
    job, jobs = train_job(context.run, 1), GrowingJobs()
    fake: Any = jobs
    for step in range(1, 1000):
        train_step(job, step)

    @flow
    def costs_s() -> float:
        log = AttemptLog(fake, "job", context.run.scratch("attempt-1"))
        keeper = _Keeper(context, MLFLOW)
        keeper._round()
        began, num_rounds = time.process_time(), 20
        for step in range(1000, 1000 + num_rounds):
            train_step(job, step)
            jobs.text += "a line of the trainer\n" * 50
            look(log)
            keeper._round()
        return (time.process_time() - began) / num_rounds

    cost_s = costs_s()
    assert cost_s / 15 < 0.01, f"{1000 * cost_s:.1f} ms for each look"


def test_the_page_is_readable_in_a_browser(
    tmp_path: Path, server: PrefectServer, browser: Browser
) -> None:
    context = image_is_there(make_context(tmp_path, train__steps=4))
    record_run(context, up_to_step=4)
    commit_checkpoint(context.run.checkpoints, 4, attempt=2)
    write_adapter(context, 4)
    flow_run_id = shown(context, lambda: (train_with(context), finish(context, 60, step=4)))
    visit = browser.new_page(viewport={"width": 1360, "height": 940})
    visit.goto(f"{server.url}/runs/flow-run/{flow_run_id}")
    visit.get_by_text("Artifacts", exact=True).click()
    expect(visit.get_by_text("train: done, 4 steps in").first).to_be_visible(timeout=20_000)
    keep_picture(visit, "live")
    made = page(flow_run_id)
    for key, text in (
        (TIMELINE_KEY, "attempt 2 has trained step 3, 37 s after attempt 1 ended"),
        (STEPS_KEY, "4 of 4"),
        (LINKS_KEY, "MLflow: metrics, files and the registered adapter"),
    ):
        visit.goto(f"{server.url}/artifacts/artifact/{made[key].id}")
        expect(visit.get_by_text(text).first).to_be_visible(timeout=20_000)
        keep_picture(visit, key.removeprefix("ariadne-"))
    visit.close()


def keep_picture(visit: Page, name: str) -> None:
    if folder := os.environ.get("ARIADNE_PICTURES"):
        visit.screenshot(path=Path(folder) / f"{name}.png")
