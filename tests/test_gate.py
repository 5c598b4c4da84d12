"""The gate on hand-made outcomes: every rule passes and fails, and the decision is on record."""

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from tasks.context import Context
from tasks.evaluate import evaluate, find_evaluation
from tasks.gate import find_decision, judge
from tasks.hosted import Hosted, Promotion, remember
from tasks.paired import mcnemar, pair, wilson
from tasks.plays import read_summary
from tasks.records import EvaluateRecord, GateRecord
from tests.fakes import CLUSTER, IMAGE, FakeJobs, Program
from tests.samples import (
    make_context,
    plays,
    reason,
    solves,
    without_waiting,
    write_adapter,
    write_outcomes,
)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    without_waiting(monkeypatch)


def jobs_of(context: Context) -> FakeJobs:
    jobs: Any = context.backends.jobs(CLUSTER)
    return jobs


def scores(context: Context, step: int, *programs: Program) -> EvaluateRecord:
    """Evaluate the adapter of a step; all programs are needed."""
    jobs_of(context).programs = list(programs)
    with disable_run_logger():
        record = evaluate.fn(context, IMAGE, write_adapter(context, step))
    assert jobs_of(context).programs == []
    return record


def decide(context: Context, record: EvaluateRecord) -> GateRecord:
    with disable_run_logger():
        return judge.fn(context, record)


def put_to_service(context: Context, record: EvaluateRecord, by: Any = "gate") -> None:
    hosted = Hosted(
        run_id=context.run.run_id,
        step=record.step,
        adapter_digest=record.adapter_digest,
        promotion=Promotion.now(by, "somebody", "some reason"),
    )
    remember(context.home, hosted)


def against_champion(
    folder: Path, champion: Collection[int], candidate: Collection[int], **policy: Any
) -> GateRecord:
    """A candidate judged against a champion of the same run; they solve these mazes."""
    context = make_context(folder, **policy)
    put_to_service(context, scores(context, 2, plays(10), solves(champion)))
    return decide(context, scores(context, 4, solves(candidate)))


@pytest.mark.parametrize(
    ("wins", "losses", "p_value"),
    [
        (0, 0, 1.0),
        (3, 3, 1.0),
        (0, 5, 0.0625),
        (0, 6, 0.03125),
        (1, 8, 0.0390625),
        (2, 8, 0.109375),
    ],
)
def test_mcnemar_is_the_exact_two_sided_test(wins: int, losses: int, p_value: float) -> None:
    """Twice the binomial tail, by hand: (1 + 9) / 2^8 for 1 and 8, 112 / 2^10 for 2 and 8."""
    assert mcnemar(wins, losses) == pytest.approx(p_value)
    assert mcnemar(losses, wins) == pytest.approx(p_value)


@pytest.mark.parametrize(
    ("solved", "played", "low", "high"),
    [
        (62, 64, 0.8931, 0.9914),
        (0, 64, 0.0, 0.0566),
        (64, 64, 0.9434, 1.0),
        (5, 10, 0.2366, 0.7634),
    ],
)
def test_intervals_are_wilsons(solved: int, played: int, low: float, high: float) -> None:
    assert wilson(solved, played) == pytest.approx((low, high), abs=1e-4)


def test_nothing_played_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_wins_and_losses_are_listed_by_their_seeds(tmp_path: Path) -> None:
    decision = against_champion(tmp_path, range(20, 40), [*range(22, 40), 50])
    seeds = [maze.seed for maze in make_context(tmp_path).run.mazes().mazes]
    assert decision.champion is not None
    assert decision.champion.wins == (seeds[50],)
    assert decision.champion.losses == (seeds[20], seeds[21])
    assert decision.champion.p_value == 1.0
    assert decision.base.num_solved == 10 and len(decision.base.losses) == 10


def test_an_adapter_that_keeps_all_rules_is_promoted_with_what_speaks_for_it(
    tmp_path: Path,
) -> None:
    context = make_context(tmp_path, gate__min_success=0.5, gate__min_gain=0.1)
    decision = decide(context, scores(context, 6, plays(28), plays(62)))
    assert decision.promoted
    assert decision.reason == "solves 62 of 64, the base 28"
    assert decision.champion is None and decision.champion_digest is None
    assert decision.interval == pytest.approx((0.8931, 0.9914), abs=1e-4)
    assert len(decision.base.wins) == 34 and decision.base.losses == ()


@pytest.mark.parametrize(("num_solved", "promoted"), [(31, False), (32, True)])
def test_the_minimum_success_is_kept_or_broken_by_one_maze(
    tmp_path: Path, num_solved: int, promoted: bool
) -> None:
    context = make_context(tmp_path, gate__min_success=0.5)
    decision = decide(context, scores(context, 6, plays(0), plays(num_solved)))
    assert decision.promoted == promoted
    if not promoted:
        assert decision.reason == "solves 31 of 64, gate.min_success = 0.5 asks for 32"


@pytest.mark.parametrize(("num_solved", "promoted"), [(46, False), (47, True)])
def test_the_minimum_gain_is_kept_or_broken_by_one_maze(
    tmp_path: Path, num_solved: int, promoted: bool
) -> None:
    context = make_context(tmp_path, gate__min_gain=0.1)
    decision = decide(context, scores(context, 6, plays(40), plays(num_solved)))
    assert decision.promoted == promoted
    if not promoted:
        assert decision.reason == "solves 46, the base 40, gate.min_gain = 0.1 asks for 7 more"


def test_a_share_is_not_misjudged_by_rounding(tmp_path: Path) -> None:
    """0.55 * 64 is 35.2 and 0.59375 * 64 is 38: neither asks for one more by a float's error."""
    for share, needed in ((0.55, 36), (0.59375, 38)):
        context = make_context(tmp_path / str(needed), gate__min_success=share)
        record = scores(context, 6, plays(0), plays(needed))
        assert decide(context, record).promoted


@pytest.mark.parametrize(("num_lost", "promoted"), [(5, True), (6, False)])
def test_a_significant_loss_against_the_champion_is_refused(
    tmp_path: Path, num_lost: int, promoted: bool
) -> None:
    """5 lost and none won has p = 0.0625; 6 have 0.031."""
    decision = against_champion(tmp_path, range(40), range(num_lost, 40))
    assert decision.promoted == promoted
    words = f"against the adapter now serving it wins 0 mazes and loses {num_lost}"
    assert words in decision.reason
    if not promoted:
        assert decision.reason.endswith("(p = 0.031), gate.max_loss_p = 0.05")


def test_the_threshold_of_a_loss_is_the_policys(tmp_path: Path) -> None:
    assert not against_champion(tmp_path, range(40), range(5, 40), gate__max_loss_p=0.1).promoted


def test_a_significant_win_is_no_loss(tmp_path: Path) -> None:
    decision = against_champion(tmp_path, range(20), range(60))
    assert decision.promoted and decision.champion and decision.champion.p_value < 1e-9


def test_a_tie_maze_by_maze_is_no_loss(tmp_path: Path) -> None:
    decision = against_champion(tmp_path, range(30), range(30))
    assert decision.promoted and decision.champion
    assert (decision.champion.wins, decision.champion.losses) == ((), ())
    assert decision.champion.p_value == 1.0


def test_every_broken_rule_is_named(tmp_path: Path) -> None:
    decision = against_champion(
        tmp_path, range(40), range(8), gate__min_success=0.5, gate__min_gain=0.1
    )
    assert not decision.promoted
    parts = decision.reason.split("; ")
    assert [part.split()[0] for part in parts] == ["solves", "solves", "against"]
    assert "\n" not in decision.reason


def test_the_decision_is_on_record_either_way_and_found_by_its_adapter(tmp_path: Path) -> None:
    for name, promoted in (("good", True), ("bad", False)):
        context = make_context(tmp_path / name, gate__min_success=0.5)
        record = scores(context, 6, plays(0), plays(60 if promoted else 3))
        decision = decide(context, record)
        assert decision.promoted == promoted
        saved = (context.run.records / "gate.json").read_text()
        assert GateRecord.model_validate_json(saved) == decision
        assert find_decision(context.run, record.adapter) == decision
        assert decide(context, record) == decision


def test_outcomes_of_other_or_of_fewer_mazes_are_an_error(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    record = scores(context, 6, plays(0), plays(60))
    mazes, mine = context.run.mazes(), read_summary(context.run, record.results)
    assert mine is not None
    for digest, num_played in ((mazes.digest, 63), ("f" * 64, 64)):
        write_outcomes(record.base_results, digest, (True,) * num_played)
        line = reason(lambda: decide(context, record))
        assert line.startswith(f"{num_played} outcomes of other mazes than the 64 of tiny-64")
        assert find_evaluation(context, record.adapter) is None
    shutil.rmtree(record.base_results)
    assert "no results in" in reason(lambda: decide(context, record))
    assert not (context.run.records / "gate.json").exists()
    with pytest.raises(ValueError, match="cannot be compared"):
        pair(mine.model_copy(update={"solved": mine.solved[1:]}), mine, mazes)


def test_the_champion_is_not_played_again_where_its_own_evaluation_fits(tmp_path: Path) -> None:
    """It is of another run; base and champion were played by the same rules there."""
    first = make_context(tmp_path)
    put_to_service(first, scores(first, 6, plays(20), plays(50)))
    second = make_context(tmp_path, train__seed=2)
    assert second.run.folder != first.run.folder
    record = scores(second, 4, plays(52))
    assert record.champion is not None and record.champion.results is not None
    assert record.champion.results.is_relative_to(second.run.folder)
    decision = decide(second, record)
    assert (decision.base.num_solved, decision.champion and decision.champion.num_solved) == (
        20,
        50,
    )
    shutil.rmtree(first.run.folder)
    assert find_evaluation(second, record.adapter) == record, "a run keeps what it compared with"


def test_a_champion_that_played_by_other_settings_is_played_again(tmp_path: Path) -> None:
    first = make_context(tmp_path)
    put_to_service(first, scores(first, 6, plays(20), plays(50)))
    second = make_context(tmp_path, train__seed=2, evaluate__max_action_tokens=9)
    record = scores(second, 4, plays(21), plays(60), plays(49))
    decision = decide(second, record)
    assert decision.champion and decision.champion.num_solved == 49


def test_without_the_results_of_the_champion_an_evaluation_is_not_complete(
    tmp_path: Path,
) -> None:
    context = make_context(tmp_path)
    record = scores(context, 4, plays(20), plays(50))
    assert find_evaluation(context, record.adapter) == record
    put_to_service(context, scores(context, 2, plays(45)))
    assert find_evaluation(context, record.adapter) is None
    again = scores(context, 4)
    assert again.champion and again.champion.step == 2
    assert find_evaluation(context, record.adapter) == again


def test_an_adapter_that_serves_already_is_judged_as_before(tmp_path: Path) -> None:
    """A flow that is started again after it hosted finds the decision it hosted by."""
    context = make_context(tmp_path)
    put_to_service(context, scores(context, 2, plays(20), plays(45)))
    record = scores(context, 4, plays(50))
    decision = decide(context, record)
    put_to_service(context, record)
    found = find_evaluation(context, record.adapter)
    assert found == record and decide(context, found) == decision


def test_a_champion_whose_files_are_gone_stops_the_promotion_and_no_flow(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    champion = scores(context, 2, plays(20), plays(45))
    put_to_service(context, champion)
    shutil.rmtree(champion.adapter)
    shutil.rmtree(champion.results)
    record = scores(context, 4, plays(50))
    assert record.champion and record.champion.results is None
    decision = decide(context, record)
    assert not decision.promoted and decision.champion is None
    assert decision.champion_digest == champion.adapter_digest
    assert decision.reason.endswith("cannot be compared with: its files are gone or changed")
    assert find_evaluation(context, record.adapter) == record
    write_adapter(context, 2)
    assert find_evaluation(context, record.adapter) is None, "it can be played again"


def test_what_an_operator_rolled_back_is_not_promoted_by_a_schedule(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    first = scores(context, 2, plays(20), plays(45))
    put_to_service(context, first)
    second = scores(context, 4, plays(60))
    put_to_service(context, second)
    assert decide(context, second).promoted
    put_to_service(context, first, by="rollback")
    decision = decide(context, second)
    assert not decision.promoted and decision.reason == "it served before and was rolled back"


def test_what_was_replaced_must_solve_more_to_come_back(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    first = scores(context, 2, plays(20), plays(60))
    put_to_service(context, first)
    put_to_service(context, scores(context, 4, plays(60)))
    with disable_run_logger():
        again = evaluate.fn(context, IMAGE, first.adapter)
    decision = decide(context, again)
    assert not decision.promoted
    assert decision.reason == (
        "it served before and was replaced; against the adapter now serving it wins 0 mazes and "
        "loses 0 (p = 1)"
    )


def test_held_out_mazes_are_reported_with_their_digests_and_decide_nothing(
    tmp_path: Path,
) -> None:
    context = make_context(tmp_path)
    decision = decide(context, scores(context, 6, plays(0), plays(3)))
    found = [(score.name, score.num_mazes, score.num_solved) for score in decision.held_out]
    assert found == [("7x7", 8, 4), ("9x9", 4, 2)]
    assert len({score.mazes_digest for score in decision.held_out}) == 2
    assert decision.held_out[0].interval == pytest.approx(wilson(4, 8))
    assert decision.promoted


def test_only_the_candidate_plays_held_out_mazes_and_only_those_it_lacks(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    record = scores(context, 6, plays(0), plays(3))
    assert [path.parent.parent for path in record.held_out] == [record.results] * 2
    assert not (record.base_results / "held-out").exists()
    more = make_context(tmp_path, evaluate__held_out_mazes=16)
    assert more.run.folder == context.run.folder
    assert find_evaluation(more, record.adapter) is None
    again = scores(more, 6, plays(64))
    assert again.num_solved == 3, "the fixed mazes were not played again"
    assert [path.name for path in again.held_out] == ["7x7-16", "9x9-4"]


def test_without_held_out_mazes_none_are_played(tmp_path: Path) -> None:
    context = make_context(tmp_path, evaluate__held_out_mazes=0, evaluate__held_out_larger_mazes=0)
    record = scores(context, 6, plays(0), plays(3))
    assert record.held_out == () and decide(context, record).held_out == ()
