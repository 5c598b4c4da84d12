"""The flows on a real Prefect server, with stand-ins for Ray, MLflow and the model server: who is
promoted, who is not, and what serves then."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import State
from prefect.testing.utilities import prefect_test_harness

from flows import evaluate, host, post_train, preflight, rollback
from tasks import deployments
from tasks.context import Context
from tasks.home import Home
from tasks.hosted import history
from tasks.records import GateRecord, HostRecord
from tests.fakes import CLUSTER, IMAGE, FakeJobs, FakeModels, FakeTracker, Program
from tests.samples import make_context, plays, trains, without_waiting

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def prefect_server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=240):
        yield


class World:
    """A home with stand-ins for everything outside, in which the flows run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.context: Context = make_context(folder)
        self.home: Home = self.context.home.create()
        self.jobs: FakeJobs = self.context.backends.jobs(CLUSTER)  # ty: ignore
        self.models: FakeModels = self.context.backends.models  # ty: ignore
        self.tracker: FakeTracker = self.context.backends.tracker  # ty: ignore
        monkeypatch.setenv("ARIADNE_HOME", str(self.home.root))
        monkeypatch.setattr(post_train, "probe_image", lambda *_: None)
        for flow in (post_train, evaluate, host, rollback):
            monkeypatch.setattr(flow, "build_image", lambda *_, **__: IMAGE)

    def use(self, **overrides: Any) -> Context:
        """The run of these settings, in the same home with the same stand-ins."""
        run = make_context(self._folder, **overrides).run
        self.context = Context(run, self.home, self.context.backends)
        for flow in (evaluate, host, rollback):
            self._monkeypatch.setattr(flow, "reopen", lambda run_id: self.context)
        self._monkeypatch.setattr(post_train, "begin", lambda *_: self.context)
        return self.context

    def train(self, *programs: Program, **overrides: Any) -> State[Any]:
        """post-train with these jobs, all of them needed; how it ends."""
        self.use(**overrides)
        self.jobs.programs = list(programs)
        state = post_train.post_train(profile="smoke", return_state=True)
        assert self.jobs.programs == []
        return state

    def steps_hosted(self) -> list[tuple[str, int]]:
        return [(hosted.run_id, hosted.step) for hosted in history(self.home)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    without_waiting(monkeypatch)
    world = World(tmp_path, monkeypatch)
    yield world
    shutil.rmtree(world.home.runtime)


def artifacts(state: State[Any]) -> dict[str, Any]:
    """The artifacts of a flow run, by key: description and data."""
    run_id = state.state_details.flow_run_id
    assert isinstance(run_id, UUID)
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        )
    return {str(artifact.key): artifact for artifact in found}


def gate_record(context: Context) -> GateRecord:
    return GateRecord.model_validate_json((context.run.records / "gate.json").read_text())


def train_champion(world: World) -> Context:
    assert world.train(trains(to=6), plays(20), plays(50)).name == "Completed"
    return world.context


def test_a_promoted_adapter_serves_and_is_champion_in_the_registry(world: World) -> None:
    context = train_champion(world)
    decision = gate_record(context)
    assert world.models.started == [decision.adapter_digest]
    assert world.steps_hosted() == [(context.run.run_id, 6)]
    assert world.tracker.aliases == {"champion": decision.adapter_digest}
    assert world.tracker.tags[decision.adapter_digest]["gate"] == "promoted"
    assert "gate/step_6/gate.json" in world.tracker.files
    assert world.tracker.closed[context.run.run_id] == "FINISHED"


def test_a_rejected_candidate_ends_not_promoted_and_the_champion_keeps_serving(
    world: World,
) -> None:
    champion = gate_record(train_champion(world)).adapter_digest
    state = world.train(trains(to=6), plays(30), train__seed=2)
    assert (state.type.value, state.name) == ("COMPLETED", "NotPromoted")
    decision = gate_record(world.context)
    assert state.message == decision.reason
    assert "it wins 0 mazes and loses 20 (p = 1.9e-06)" in decision.reason

    assert world.models.started == [champion], "the server was not touched"
    assert [hosted.adapter_digest for hosted in history(world.home)] == [champion]
    assert world.tracker.aliases == {"champion": champion}
    assert not (world.context.run.records / "host.json").exists()

    tags = world.tracker.tags[decision.adapter_digest]
    assert (tags["gate"], tags["gate_reason"]) == ("rejected", decision.reason)
    assert world.tracker.files.count("gate/step_6/gate.json") == 2
    assert world.tracker.closed[world.context.run.run_id] == "FINISHED"
    made = artifacts(state)
    assert made["ariadne-gate"].description == f"not promoted: {decision.reason}"
    rows = {row["what"]: row["value"] for row in json.loads(made["ariadne-summary"].data)}
    assert rows["gate"] == f"not promoted: {decision.reason}"
    assert rows["endpoint"] == "as before" and "ariadne-endpoint" not in made


def test_a_rejected_candidate_is_rejected_again_without_any_work(world: World) -> None:
    train_champion(world)
    first = world.train(trains(to=6), plays(30), train__seed=2)
    second = world.train(train__seed=2)
    assert (second.name, second.message) == ("NotPromoted", first.message)


def test_whoever_follows_a_run_hears_why_its_adapter_was_not_promoted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "_LOGS_TIMEOUT_S", 0)  # the test server keeps no logs
    state = world.train(trains(to=6), plays(20), plays(50), gate__min_success=0.9)
    said: list[str] = []
    run_id = state.state_details.flow_run_id
    assert run_id and deployments.follow(run_id, said.append) == "NotPromoted"
    assert said[-1] == f"NotPromoted: {state.message}"
    rows = {row["what"]: row["value"] for row in deployments.summary(run_id)}
    assert rows["gate"] == f"not promoted: {state.message}"


def test_a_first_candidate_that_fails_leaves_nothing_serving(world: World) -> None:
    state = world.train(trains(to=6), plays(20), plays(50), gate__min_success=0.9)
    assert state.name == "NotPromoted"
    assert world.models.started == [] and world.steps_hosted() == []
    assert world.tracker.aliases == {}


def test_an_operator_promotes_a_rejected_candidate_by_the_host_flow_with_a_reason(
    world: World,
) -> None:
    champion = gate_record(train_champion(world)).adapter_digest
    world.train(trains(to=6), plays(30), train__seed=2)
    run_id = world.context.run.run_id

    refused = host.host(run_id, 6, return_state=True)
    assert refused.is_failed() and "the gate did not promote" in str(refused.message)
    assert world.tracker.aliases == {"champion": champion}

    why = "The customer wants seed 2, ticket 4711"
    hosted = host.host(run_id, 6, operator="Ada L.", reason=why, return_state=True)
    assert hosted.is_completed()
    digest = gate_record(world.context).adapter_digest
    assert world.models.started == [champion, digest]
    assert world.tracker.aliases == {"previous": champion, "champion": digest}
    tags = world.tracker.tags[digest]
    assert (tags["gate"], tags["hosted_by"], tags["hosted_because"]) == ("rejected", "Ada L.", why)
    record = HostRecord.model_validate_json((world.context.run.records / "host.json").read_text())
    last = history(world.home)[-1].promotion
    assert last == record.promotion and (last.by, last.who, last.why) == ("operator", "Ada L.", why)


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        ("Ada", "too short"),
        ("Ada", "x" * 501),
        ("Ada", "one line\nand another"),
        ("A" * 101, "y" * 20),
    ],
)
def test_a_reason_that_is_none_does_not_pass_the_form(
    world: World, operator: str, reason: str
) -> None:
    world.use()
    state = host.host("smoke-0", 6, operator=operator, reason=reason, return_state=True)
    assert state.is_failed() and "should match pattern" in str(state.message)


def test_the_evaluate_flow_judges_and_then_the_host_flow_serves(world: World) -> None:
    context = train_champion(world)
    world.jobs.programs = [plays(55)]
    assert evaluate.evaluate(context.run.run_id, 4) == 55
    assert gate_record(context).step == 4 and gate_record(context).promoted
    assert world.steps_hosted() == [(context.run.run_id, 6)]
    host.host(context.run.run_id, 4)
    assert world.steps_hosted() == [(context.run.run_id, 6), (context.run.run_id, 4)]
    assert len(world.tracker.versions) == 2


def test_a_rollback_moves_the_aliases_back_and_a_schedule_does_not_undo_it(world: World) -> None:
    first = gate_record(train_champion(world)).adapter_digest
    earlier = world.context
    world.train(trains(to=6), plays(60), train__seed=2)
    second = gate_record(world.context).adapter_digest
    assert world.tracker.aliases == {"previous": first, "champion": second}

    world.context = earlier  # the run that the history names
    rollback.rollback()
    assert world.tracker.aliases == {"previous": second, "champion": first}
    assert world.models.started == [first, second, first]
    promotion = history(world.home)[-1].promotion
    assert promotion and promotion.by == "rollback"

    state = world.train(train__seed=2)
    assert (state.name, state.message) == ("NotPromoted", "it served before and was rolled back")
    assert world.tracker.aliases == {"previous": second, "champion": first}


def test_a_crash_between_hosting_and_the_registry_is_made_good_by_the_next_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crashing:
        crashing.setattr(FakeTracker, "point_aliases", _die)
        with pytest.raises(KeyboardInterrupt):
            world.train(trains(to=6), plays(20), plays(50))
    assert world.steps_hosted() == [(world.context.run.run_id, 6)]
    assert world.tracker.aliases == {}
    assert world.train().name == "Completed"
    digest = gate_record(world.context).adapter_digest
    assert world.tracker.aliases == {"champion": digest}
    assert world.models.started == [digest] and world.tracker.versions == [digest]


def _die(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_doomed_run_is_refused_before_an_image_is_built_or_a_job_is_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_train, "build_image", lambda *_, **__: pytest.fail("it was built"))
    state = world.train(train__micro_batch_episodes=7)
    assert state.is_failed() and state.message
    assert "8 episodes of a mini batch in each process are no multiple of 7" in state.message
    assert world.jobs.submitted == [] and world.models.started == []
    assert world.context.run.run_id not in world.tracker.closed


def test_the_flow_preflight_passes_a_good_profile_and_fails_a_doomed_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(world.home.root.rglob("*"))
    assert preflight.preflight(profile="smoke", return_state=True).is_completed()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    state = preflight.preflight(profile="hyperpod", return_state=True)
    assert state.is_failed() and "shared paths: ARIADNE_HOME" in (state.message or "")
    assert sorted(world.home.root.rglob("*")) == before
