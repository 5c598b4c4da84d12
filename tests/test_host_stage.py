"""The hosting stage: what the gate promoted is served, once, and what served before is known.

Nothing else is served, but on an operator's word.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from configs.jobs import SolveJob
from tasks import records
from tasks.context import Context
from tasks.evaluate import evaluate
from tasks.gate import judge
from tasks.host import host_adapter, solve_job_file
from tasks.hosted import (
    Hosted,
    Promotion,
    champion,
    choose_rollback,
    history,
    is_rolled_back,
    on_word_of,
)
from tasks.records import GateRecord, HostRecord
from tests.fakes import CLUSTER, IMAGE, FakeModels, Program
from tests.samples import make_context, plays, reason, without_waiting, write_adapter


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    without_waiting(monkeypatch)
    return make_context(tmp_path, host__port=8100)


def models_of(context: Context) -> FakeModels:
    models: Any = context.backends.models
    return models


def judged(context: Context, step: int, *programs: Program) -> GateRecord:
    """The adapter of a step, evaluated and judged; the base is played once."""
    adapter = write_adapter(context, step)
    jobs: Any = context.backends.jobs(CLUSTER)
    jobs.programs = list(programs) or [plays(50)]
    jobs.programs[:0] = [] if jobs.submitted else [plays(28)]
    with disable_run_logger():
        return judge.fn(context, evaluate.fn(context, IMAGE, adapter))


def host(context: Context, decision: GateRecord, word: Promotion | None = None) -> HostRecord:
    with disable_run_logger():
        return host_adapter.fn(context, IMAGE, decision, word)


def host_in_turn(context: Context, *steps: int) -> dict[int, GateRecord]:
    """Adapters of several steps, each judged against the one before and hosted."""
    decisions = {}
    for step in steps:
        decisions[step] = judged(context, step)
        host(context, decisions[step])
    return decisions


def roll_back(context: Context, decisions: dict[int, GateRecord]) -> int:
    chosen = choose_rollback(context.home)
    host(context, decisions[chosen.to.step], chosen.promotion)
    return chosen.to.step


def steps_hosted(context: Context) -> list[int]:
    return [hosted.step for hosted in history(context.home)]


def test_a_promoted_adapter_is_served_under_its_name(context: Context) -> None:
    decision = judged(context, 6)
    record = host(context, decision)
    assert models_of(context).started == [decision.adapter_digest]
    assert record.endpoint.models == {
        "base": context.run.file.base_digest,
        "maze-solver": decision.adapter_digest,
    }
    assert record.gate == decision.inputs
    assert (record.promotion.by, record.promotion.why) == ("gate", decision.reason)
    assert records.find(HostRecord, record.inputs, context.run.records) == record


def test_whoever_solves_a_maze_finds_the_endpoint(context: Context) -> None:
    record = host(context, judged(context, 6))
    job = SolveJob.read(solve_job_file(context.home))
    assert (job.url, job.model) == (record.endpoint.url, "maze-solver")


def test_an_adapter_already_served_starts_nothing_and_is_remembered_once(
    context: Context,
) -> None:
    decision = judged(context, 6)
    assert host(context, decision) == host(context, decision)
    assert len(models_of(context).started) == 1
    assert steps_hosted(context) == [6]


def test_a_server_that_is_gone_is_started_again(context: Context) -> None:
    decision = judged(context, 6)
    host(context, decision)
    models_of(context).stop()
    host(context, decision)
    assert models_of(context).started == [decision.adapter_digest] * 2
    assert steps_hosted(context) == [6]


def test_a_server_that_does_not_start_leaves_no_record_and_no_history(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = judged(context, 6)

    def fail(*_: Any) -> None:
        raise RuntimeError("the model server does not serve; see its log")

    monkeypatch.setattr(FakeModels, "serve", fail)
    assert "does not serve" in reason(lambda: host(context, decision))
    assert not (context.run.records / "host.json").exists()
    assert history(context.home) == [] and not solve_job_file(context.home).exists()


def test_a_server_that_serves_another_adapter_is_no_success(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = judged(context, 6)
    found = FakeModels.find

    def confuse(self: FakeModels, model: Any) -> Any:
        endpoint = found(self, model)
        models = {model.alias: "f" * 64}
        return endpoint and endpoint.model_copy(update={"models": models})

    monkeypatch.setattr(FakeModels, "find", confuse)
    assert f"serves {'f' * 64} as 'maze-solver'" in reason(lambda: host(context, decision))
    assert history(context.home) == []


def test_a_rejected_adapter_is_refused_and_says_who_may_overrule(tmp_path: Path) -> None:
    context = make_context(tmp_path, gate__min_success=0.9)
    decision = judged(context, 6)
    assert not decision.promoted
    line = reason(lambda: host(context, decision))
    assert line.startswith("the gate did not promote adapter step_6 of run smoke-")
    assert "solves 50 of 64, gate.min_success = 0.9 asks for 58" in line
    assert line.endswith("run the deployment host/host with your name and a reason")
    assert models_of(context).started == [] and history(context.home) == []


def test_an_operator_overrules_the_gate_and_stays_on_record(tmp_path: Path) -> None:
    context = make_context(tmp_path, gate__min_success=0.9)
    decision = judged(context, 6)
    word = on_word_of("Ada L.", "Shown at the fair, nothing better is there")
    record = host(context, decision, word)
    assert record.promotion == word
    assert history(context.home)[-1].promotion == word
    saved = HostRecord.model_validate_json((context.run.records / "host.json").read_text())
    assert (saved.promotion.by, saved.promotion.who) == ("operator", "Ada L.")
    assert saved.promotion.why == "Shown at the fair, nothing better is there"
    assert saved.promotion.when.utcoffset() is not None


@pytest.mark.parametrize(
    ("operator", "why", "message"),
    [
        ("", "it is needed today", "who: String should have at least 2 characters"),
        ("Ada", "", "why: String should have at least 2 characters"),
        ("Ada", "x" * 501, "why: String should have at most 500 characters"),
        ("Ada", "two\nlines of text", "why: Value error, use one line of printable characters"),
        ("Ada\x1b[2J", "it is needed", "who: Value error, use one line of printable characters"),
    ],
)
def test_a_word_that_says_nothing_readable_is_refused(
    operator: str, why: str, message: str
) -> None:
    line = reason(lambda: on_word_of(operator, why))
    assert line == f"to overrule the gate give your name and a reason: {message}"


def test_without_name_and_reason_the_gate_decides() -> None:
    assert on_word_of("", "") is None


def test_a_decision_that_is_not_on_record_is_refused(context: Context) -> None:
    decision = judged(context, 6)
    forged = decision.model_copy(update={"num_solved": 64})
    word = on_word_of("Ada", "I trust it anyway")
    line = reason(lambda: host(context, forged))
    assert "adapter step_6 of run" in line and "is not what the gate has on record" in line
    assert reason(lambda: host(context, forged, word)) == line
    assert models_of(context).started == []


def test_an_adapter_that_was_changed_since_it_was_judged_is_refused(context: Context) -> None:
    decision = judged(context, 6)
    (decision.adapter / "adapter_model.safetensors").write_bytes(b"something else")
    word = on_word_of("Ada", "I trust it anyway")
    assert "is damaged" in reason(lambda: host(context, decision, word))
    assert models_of(context).started == []


def test_another_adapter_in_the_judged_ones_place_is_refused(context: Context) -> None:
    decision, other = judged(context, 6), judged(context, 4)
    shutil.rmtree(decision.adapter)
    shutil.copytree(other.adapter, decision.adapter)
    line = reason(lambda: host(context, decision, on_word_of("Ada", "I trust it anyway")))
    assert "is not what the gate has on record" in line


def test_a_decision_against_an_adapter_that_serves_no_more_is_refused(context: Context) -> None:
    early, other = judged(context, 2), judged(context, 4)
    host(context, other)
    line = reason(lambda: host(context, early))
    assert "against another adapter than the one that serves now" in line
    assert steps_hosted(context) == [4]
    host(context, judged(context, 2))
    assert steps_hosted(context) == [4, 2]


def test_a_decision_by_another_policy_is_refused(tmp_path: Path, context: Context) -> None:
    decision = judged(context, 6)
    stricter = make_context(tmp_path, host__port=8100, gate__min_success=0.9)
    assert stricter.run.folder == context.run.folder
    assert "was judged by another policy" in reason(lambda: host(stricter, decision))


def test_history_tells_what_served_in_order(context: Context) -> None:
    first, second = judged(context, 2), None
    host(context, first)
    second = judged(context, 4)
    host(context, second)
    host(context, second)
    host(context, judged(context, 2), on_word_of("Ada", "the older one is wanted"))
    assert steps_hosted(context) == [2, 4, 2]
    line = history(context.home)[0]
    assert (line.run_id, line.adapter_digest) == (context.run.run_id, first.adapter_digest)


def test_a_history_from_before_reasons_were_asked_for_is_read(context: Context) -> None:
    old = Hosted(run_id="old-run", step=3, adapter_digest="a" * 64)
    file = context.home.hosting / "history.jsonl"
    file.write_text(old.model_dump_json(exclude={"promotion"}) + "\n")
    assert history(context.home) == [old] and champion(context.home, "b" * 64) == old
    assert not is_rolled_back(context.home, "a" * 64)


def test_a_rollback_goes_to_the_adapter_before(context: Context) -> None:
    decisions = host_in_turn(context, 2, 4, 6)
    assert roll_back(context, decisions) == 4
    promotion = history(context.home)[-1].promotion
    assert promotion and promotion.by == "rollback"
    assert promotion.why.startswith(f"instead of adapter {decisions[6].adapter_digest[:12]}")


def test_a_rollback_is_undone_by_another(context: Context) -> None:
    decisions = host_in_turn(context, 2, 4)
    assert [roll_back(context, decisions) for _ in range(3)] == [2, 4, 2]


def test_a_rollback_passes_over_the_same_adapter_of_another_step(context: Context) -> None:
    decisions = host_in_turn(context, 2, 4)
    again = Hosted(run_id=context.run.run_id, step=5, adapter_digest=decisions[4].adapter_digest)
    with (context.home.hosting / "history.jsonl").open("a") as file:
        file.write(again.model_dump_json() + "\n")
    assert choose_rollback(context.home).to.step == 2


def test_a_rollback_with_nothing_before_is_refused(context: Context) -> None:
    line = "nothing to roll back to: no other adapter was hosted before"
    assert reason(lambda: choose_rollback(context.home)) == line
    host(context, judged(context, 6))
    assert reason(lambda: choose_rollback(context.home)) == line


def test_only_what_a_rollback_took_out_of_service_counts_as_rolled_back(context: Context) -> None:
    decisions = host_in_turn(context, 2, 4)
    digests = {step: decision.adapter_digest for step, decision in decisions.items()}
    assert not any(is_rolled_back(context.home, digest) for digest in digests.values())
    roll_back(context, decisions)
    assert is_rolled_back(context.home, digests[4])
    assert not is_rolled_back(context.home, digests[2])
    assert not is_rolled_back(context.home, "f" * 64)
    roll_back(context, decisions)
    assert is_rolled_back(context.home, digests[2])
    assert not is_rolled_back(context.home, digests[4])


def test_what_served_before_stays_at_hand(context: Context) -> None:
    decisions = host_in_turn(context, 2, 4)
    roll_back(context, decisions)
    at_hand = [w.previous.digest if w.previous else None for w in models_of(context).wishes]
    digests = {step: decision.adapter_digest for step, decision in decisions.items()}
    assert at_hand == [None, digests[2], digests[4]]
