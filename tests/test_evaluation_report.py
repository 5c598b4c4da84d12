"""The facts of an evaluation report: what an episode was lost to, how sure a rate is, bad files."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from configs.jobs import MetricsLine
from tasks.context import Context
from tasks.episodes import DIAGNOSES, Episode, diagnose, lost_turns, reached_target, read_episodes
from tasks.evaluation_report import (
    EvaluationReport,
    GateDecision,
    build_report,
    by_length,
    training_of,
)
from tasks.rates import compare, rate
from tasks.records import EvaluateRecord
from tests.evaluations import evaluation
from tests.samples import reason
from tests.walks import episode, maze_set, perfect, write_results

MAZES = maze_set(((1, 1), (3, 1)), ((3, 1), (1, 1)), ((1, 5), (3, 1)))
MAZE = MAZES.mazes[0]
"""Ten moves: four right, two down, four left."""
Evaluation = tuple[Context, EvaluateRecord]


@pytest.fixture
def made(tmp_path: Path) -> Evaluation:
    """The base loops on each maze; the adapter solves all but the last."""
    base = [episode(maze, "RL" * 6 if maze.start[1] == 1 else "LR" * 6) for maze in MAZES.mazes]
    adapter = [
        episode(maze, walk)
        for maze, walk in zip(MAZES.mazes, [*map(perfect, MAZES.mazes[:2]), "DS"], strict=True)
    ]
    return evaluation(tmp_path, MAZES, base, adapter)


def of(made: Evaluation, decision: GateDecision | None = None) -> EvaluationReport:
    context, scores = made
    return build_report(context.run, scores, decision)


def played(walk: str) -> Episode:
    return Episode.model_validate(episode(MAZE, walk))


@pytest.mark.parametrize(
    ("walk", "diagnosis"),
    [
        ("RRRRDDLLLLS", "solved"),
        ("RL" * 6, "loop"),
        ("U" * 12, "wall"),
        ("?" * 12, "unparsable"),
        ("RRS", "stopped early"),
        ("RRRRDDLLRRUU", "out of turns"),  # in and out of the right way, no step twice
        ("RRRRDDLLLLRR", "out of turns"),  # past the target, but nothing twice
        ("UURRRRDDLLLL", "wall"),  # two walls, else perfect: only the stop lacked
        ("U" + "RRRRDDLLRRU", "out of turns"),  # one wall, many turns on the way back
        ("UUU" + "?" * 5 + "RLRL", "unparsable"),
        ("?" * 3 + "U" * 5 + "RLRL", "wall"),
        ("RRRRDDLLLLRL", "out of turns"),  # one step aside, one back
        ("RRRRDDLLLLRLRL", "loop"),
        ("RRRRDDLLLL", "out of turns"),  # nothing wasted: the limit is too low
    ],
)
def test_each_episode_is_put_down_to_what_it_was_lost_to(walk: str, diagnosis: str) -> None:
    assert diagnose(MAZE, played(walk)) == diagnosis


def test_a_way_out_of_a_dead_end_is_no_loop_and_the_same_step_again_is() -> None:
    assert lost_turns(MAZE, played("RRLL")) == {}
    assert lost_turns(MAZE, played("RRLLRRL")) == {"loop": 3}
    assert lost_turns(MAZE, played("U?RLRU")) == {"wall": 2, "unparsable": 1, "loop": 1}


def test_the_target_counts_as_reached_when_the_player_walks_on() -> None:
    assert reached_target(MAZE, played("RRRRDDLLLLR")) == 10
    assert reached_target(MAZE, played("RRRRDDLLL")) is None


def test_the_report_counts_every_kind_for_both_players(made: Evaluation) -> None:
    report = of(made)
    assert set(report.base.diagnoses) == set(DIAGNOSES)
    assert report.base.diagnoses == dict.fromkeys(DIAGNOSES, 0) | {"loop": 3}
    expected = dict.fromkeys(DIAGNOSES, 0) | {"solved": 2, "stopped early": 1}
    assert report.adapter.diagnoses == expected
    assert (report.base.num_reached, report.adapter.num_reached) == (0, 2)
    assert (report.comparison.wins, report.comparison.losses) == (2, 0)
    assert [maze.turns_needed for maze in report.mazes] == [11, 11, 7]
    assert report.mazes[2].adapter.diagnosis == "stopped early"
    assert report.decision is None


def test_the_gates_decision_is_carried_as_given(made: Evaluation) -> None:
    decision = GateDecision(promoted=False, reasons=("two mazes are too few",))
    assert of(made, decision).decision == decision


def test_wilson_intervals_are_those_of_the_textbook() -> None:
    z, share, n = 1.959963985, 62 / 64, 64
    middle, reach = (
        (share + z * z / (2 * n)) / (1 + z * z / n),
        z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n),
    )
    found = rate(62, 64)
    assert (found.low, found.high) == pytest.approx((middle - reach, middle + reach), abs=1e-9)
    assert rate(64, 64).high == 1.0 and rate(64, 64).low > 0.94
    assert rate(0, 64).low == 0.0


def test_mcnemars_test_is_exact_and_looks_at_pairs_that_differ() -> None:
    theirs = [False] * 35 + [True] * 2 + [True] * 27
    ours = [True] * 35 + [False] * 2 + [True] * 27
    found = compare("base", theirs, ours)
    assert (found.wins, found.losses) == (35, 2)
    assert found.p_value == pytest.approx(2 * (1 + 37 + 37 * 36 / 2) / 2**37)
    assert compare("base", [True, False], [True, False]).p_value == 1.0


def test_success_by_path_length_knows_the_ceiling_of_the_turn_limit() -> None:
    rows = by_length([9, 9, 13, 21], 18, [True, False, False, False], [True, True, True, False])
    assert [row.label for row in rows] == ["9", "13", "21"]
    assert [row.base.num_solved for row in rows] == [1, 0, 0]
    assert [row.adapter.num_solved for row in rows] == [2, 1, 0]
    assert [row.solvable for row in rows] == [2, 1, 0]


def test_many_path_lengths_become_ranges_that_hold_every_maze() -> None:
    needed = list(range(5, 69))
    rows = by_length(needed, 30, [False] * 64, [length <= 30 for length in needed])
    assert 5 <= len(rows) <= 10
    assert sum(row.base.num_mazes for row in rows) == 64
    assert sum(row.solvable for row in rows) == sum(row.adapter.num_solved for row in rows) == 26
    assert rows[0].label.startswith("5-") and rows[-1].longest == 68
    assert all(shorter.longest < longer.shortest for shorter, longer in pairwise(rows))


def lines(num_steps: int, resumed_at: int = 0, **values: float) -> list[MetricsLine]:
    return [
        MetricsLine(
            step=step,
            attempt=2 if resumed_at and step >= resumed_at else 1,
            wall_time_ms=step,
            values={"environment/success": step / num_steps, **values},
        )
        for step in range(1, num_steps + 1)
    ]


def test_a_training_curve_marks_where_a_later_attempt_went_on() -> None:
    training = training_of(lines(4, resumed_at=3), evaluated=4)
    assert training.steps == (1, 2, 3, 4)
    assert training.resumed == (3,)
    (curve,) = training.curves
    assert (curve.title, curve.values) == ("Batch success", (0.25, 0.5, 0.75, 1.0))


def test_a_long_training_is_thinned_and_keeps_its_ends_and_the_step_evaluated() -> None:
    training = training_of(lines(100_000), evaluated=777)
    assert len(training.steps) < 600
    assert {1, 777, 100_000} <= set(training.steps)
    assert list(training.steps) == sorted(set(training.steps))


def test_values_that_are_not_finite_are_gaps_and_the_report_stays_json() -> None:
    bad = lines(2, **{"policy/grad_norm": math.nan})
    curve = training_of(bad, evaluated=2).curves[1]
    assert curve.values == (None, None)
    assert json.loads(curve.model_dump_json())["values"] == [None, None]


def test_a_run_without_steps_has_no_curves(made: Evaluation) -> None:
    assert of(made).training == training_of([], evaluated=6)
    assert of(made).training.curves == ()


def test_half_a_surrogate_pair_in_the_words_is_replaced(made: Evaluation) -> None:
    _, scores = made
    walks = [episode(maze, perfect(maze), ["\ud83d no"]) for maze in MAZES.mazes]
    write_results(scores.results, MAZES, walks)
    assert of(made).mazes[0].adapter.turns[0].reply == "? no"


Damage = Callable[[Path], Any]


def edit(number: int, **changes: Any) -> Damage:
    """Change one episode of the file."""

    def damage(folder: Path) -> None:
        file = folder / "episodes.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows[number - 1] |= changes
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return damage


def cut(folder: Path) -> None:
    file = folder / "episodes.jsonl"
    file.write_text(file.read_text()[:-40])


def drop(folder: Path) -> None:
    file = folder / "episodes.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def other_summary(folder: Path) -> None:
    file = folder / "summary.json"
    file.write_text(file.read_text().replace("stopped early", "out of turns"))


THROUGH_A_WALL = {
    "turns": [{"reply": "", "action": "('move', 3)", "outcome": "moved", "agent": [2, 1]}],
    "end": "out of turns",
    "solved": False,
}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "episodes.jsonl").unlink(), "episodes.jsonl is missing"),
        (lambda folder: (folder / "summary.json").unlink(), "summary.json is missing"),
        (
            lambda folder: (folder / "summary.json").write_text("{}"),
            "a file is damaged (mazes_digest",
        ),
        (
            lambda folder: (folder / "episodes.jsonl").write_bytes(b"\xff\xfe"),
            "a file is damaged (",
        ),
        (drop, "2 episodes and 3 outcomes for the 3 mazes of hall"),
        (cut, "episodes.jsonl line 3 is no episode ("),
        (edit(2, end="gave up"), "episodes.jsonl line 2 is no episode (end: Input should be"),
        (edit(2, turns=[]), "episodes.jsonl line 2: it has no turns"),
        (edit(2, seed=7), "episodes.jsonl line 2: it is of the maze with seed 7, not 1"),
        (edit(1, **THROUGH_A_WALL), "line 1: turn 1 (moved) leads from (1, 1) to (2, 1)"),
        (edit(3, solved=True, end="solved"), "says 'solved' of an episode that ended 'stopped"),
        (edit(1, solved=False), "says 'solved' of an episode that ended 'solved'"),
        (other_summary, "episodes.jsonl and summary.json tell of different outcomes"),
    ],
)
def test_incomplete_results_are_one_line_that_names_the_next_move(
    made: Evaluation, damage: Damage, problem: str
) -> None:
    folder = made[1].results
    damage(folder)
    line = reason(lambda: of(made))
    assert line.startswith(f"evaluation results in {folder}: ")
    assert problem in line
    assert line.endswith("delete this folder and evaluate again")


def test_intact_results_are_read_in_the_order_of_the_mazes(made: Evaluation) -> None:
    read = read_episodes(made[1].results, MAZES)
    assert [each.seed for each in read] == [maze.seed for maze in MAZES.mazes]
