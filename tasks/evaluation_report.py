"""An evaluation as people look at it: base against adapter, from the files of the run directory.

The numbers are computed here, once, and frozen; `evaluation_page` shows them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

from pydantic import BaseModel, ConfigDict

from configs.jobs import MetricsLine
from configs.mazes import Cell, MazeLayout, MazeSet
from tasks.episodes import (
    DIAGNOSES,
    Diagnosis,
    Episode,
    PlayedTurn,
    diagnose,
    lost_turns,
    reached_target,
    read_episodes,
)
from tasks.rates import PairedComparison, Rate, compare, rate
from tasks.records import EvaluateRecord, GateRecord
from tasks.run_dir import Run

_MOST_LENGTHS = 10
"""Path lengths that get a column each; where there are more, ranges of lengths do."""
_MOST_POINTS = 500
"""Steps of a curve that are drawn, about; of a longer training every n-th."""
_CURVES = (
    ("environment/success", "Batch success", "share"),
    ("policy/policy_entropy", "Policy entropy", "nats"),
    ("environment/turns", "Turns per episode", ""),
    ("environment/wall_hits", "Wall hits per episode", ""),
    ("environment/unparsable", "Unparsable per episode", ""),
    ("policy/rollout_train_logprobs_abs_diff_mean", "Trainer/server gap", "nats"),
    ("policy/grad_norm", "Gradient norm", ""),
    ("timing/step", "Time per step", "s"),
)
"""Metric, title and unit of each panel."""


class Part(BaseModel):
    """A frozen part of the report."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GateDecision(Part):
    """Whether the adapter may be served, and why."""

    promoted: bool
    reasons: tuple[str, ...]
    comparisons: tuple[PairedComparison, ...] = ()

    @classmethod
    def of(cls, record: GateRecord) -> Self:
        """What the gate has on record."""
        against = {"base": record.base, "champion": record.champion}
        comparisons = tuple(
            PairedComparison(
                opponent=name,
                wins=len(other.wins),
                losses=len(other.losses),
                p_value=other.p_value,
            )
            for name, other in against.items()
            if other
        )
        reasons = tuple(record.reason.split("; "))
        return cls(promoted=record.promoted, reasons=reasons, comparisons=comparisons)


class Player(Part):
    """What one model made of all mazes."""

    name: str
    rate: Rate
    diagnoses: dict[Diagnosis, int]
    """How many episodes of each kind, every kind named."""
    num_reached: int
    """Mazes in which the player stood on the target, stopped there or not."""


class Walk(Part):
    """One episode."""

    diagnosis: Diagnosis
    reached_turn: int | None
    lost: dict[str, int]
    """Turns that led nowhere, by cause."""
    turns: tuple[PlayedTurn, ...]


class MazeReport(Part):
    """One maze and both walks on it."""

    seed: int
    grid: tuple[str, ...]
    start: Cell
    target: Cell
    turns_needed: int
    base: Walk
    adapter: Walk


class LengthRow(Part):
    """The mazes of one path length, or of a range of lengths."""

    shortest: int
    """In turns of a perfect player, the stop included."""
    longest: int
    solvable: int
    """Mazes that the turn limit lets be solved: no player can be above."""
    base: Rate
    adapter: Rate

    @property
    def label(self) -> str:
        same = self.shortest == self.longest
        return str(self.shortest) if same else f"{self.shortest}-{self.longest}"


class Curve(Part):
    """One metric over training; None where a step has no finite value."""

    title: str
    unit: str
    values: tuple[float | None, ...]


class Training(Part):
    """The steps that led to the adapter, and those after it."""

    steps: tuple[int, ...]
    resumed: tuple[int, ...]
    """First steps of later attempts."""
    curves: tuple[Curve, ...]


class EvaluationReport(Part):
    """Everything the page shows."""

    run_id: str
    step: int
    adapter_digest: str
    base_digest: str
    mazes_name: str
    mazes_digest: str
    height: int
    width: int
    max_turns: int
    num_solvable: int
    base: Player
    adapter: Player
    comparison: PairedComparison
    lengths: tuple[LengthRow, ...]
    mazes: tuple[MazeReport, ...]
    training: Training
    decision: GateDecision | None


def build_report(
    run: Run, scores: EvaluateRecord, decision: GateDecision | None = None
) -> EvaluationReport:
    """The report of one evaluation, from the files it left.

    Raises:
        ValueError: one line: the results are incomplete, damaged, or not of these mazes.
    """
    mazes, max_turns = run.mazes(), run.config.mazes.max_turns
    base = read_episodes(scores.base_results, mazes)
    adapter = read_episodes(scores.results, mazes)
    return EvaluationReport(
        run_id=run.run_id,
        step=scores.step,
        adapter_digest=scores.adapter_digest,
        base_digest=run.file.base_digest,
        mazes_name=mazes.name,
        mazes_digest=mazes.digest,
        height=mazes.height,
        width=mazes.width,
        max_turns=max_turns,
        num_solvable=mazes.num_solvable(max_turns),
        base=_player("base", mazes, base),
        adapter=_player("adapter", mazes, adapter),
        comparison=compare("base", _solved(base), _solved(adapter)),
        lengths=by_length(mazes.turns_needed(), max_turns, _solved(base), _solved(adapter)),
        mazes=_mazes(mazes, base, adapter),
        training=training_of(run.steps(), scores.step),
        decision=decision,
    )


def _solved(episodes: Sequence[Episode]) -> list[bool]:
    return [episode.solved for episode in episodes]


def _player(name: str, mazes: MazeSet, episodes: Sequence[Episode]) -> Player:
    pairs = list(zip(mazes.mazes, episodes, strict=True))
    found = [diagnose(*pair) for pair in pairs]
    return Player(
        name=name,
        rate=rate(sum(_solved(episodes)), len(episodes)),
        diagnoses={kind: found.count(kind) for kind in DIAGNOSES},
        num_reached=sum(reached_target(*pair) is not None for pair in pairs),
    )


def _mazes(
    mazes: MazeSet, base: Sequence[Episode], adapter: Sequence[Episode]
) -> tuple[MazeReport, ...]:
    return tuple(
        MazeReport(
            seed=maze.seed,
            grid=maze.grid,
            start=maze.start,
            target=maze.target,
            turns_needed=needed,
            base=_walk(maze, before),
            adapter=_walk(maze, after),
        )
        for maze, needed, before, after in zip(
            mazes.mazes, mazes.turns_needed(), base, adapter, strict=True
        )
    )


def _walk(maze: MazeLayout, episode: Episode) -> Walk:
    return Walk(
        diagnosis=diagnose(maze, episode),
        reached_turn=reached_target(maze, episode),
        lost=dict(lost_turns(maze, episode)),
        turns=episode.turns,
    )


def by_length(
    needed: Sequence[int], max_turns: int, base: Sequence[bool], adapter: Sequence[bool]
) -> tuple[LengthRow, ...]:
    """Outcomes by the turns that a perfect player needs for each maze, shortest first."""
    rows = []
    for lengths in _group(sorted(set(needed))):
        here = [index for index, length in enumerate(needed) if length in lengths]
        rows.append(
            LengthRow(
                shortest=lengths[0],
                longest=lengths[-1],
                solvable=sum(needed[index] <= max_turns for index in here),
                base=rate(sum(base[index] for index in here), len(here)),
                adapter=rate(sum(adapter[index] for index in here), len(here)),
            )
        )
    return tuple(rows)


def _group(lengths: list[int]) -> list[list[int]]:
    """Ascending lengths, each alone; or, where they are many, in ranges of equal width."""
    if len(lengths) <= _MOST_LENGTHS:
        return [[length] for length in lengths]
    width = math.ceil((lengths[-1] - lengths[0] + 1) / _MOST_LENGTHS)
    groups: dict[int, list[int]] = {}
    for length in lengths:
        groups.setdefault((length - lengths[0]) // width, []).append(length)
    return list(groups.values())


def training_of(lines: list[MetricsLine], evaluated: int) -> Training:
    """The curves of one line a step; the step evaluated is always among those drawn."""
    stride = math.ceil(len(lines) / _MOST_POINTS)
    drawn = [
        line
        for index, line in enumerate(lines, 1)
        if line.step == evaluated or index in (1, len(lines)) or index % stride == 0
    ]
    return Training(
        steps=tuple(line.step for line in drawn),
        resumed=tuple(
            after.step for before, after in pairwise(lines) if after.attempt != before.attempt
        ),
        curves=tuple(
            Curve(
                title=title,
                unit=unit,
                values=tuple(_finite(line.values.get(metric)) for line in drawn),
            )
            for metric, title, unit in _CURVES
            if any(metric in line.values for line in lines)
        ),
    )


def _finite(value: float | None) -> float | None:
    """JSON has no word for a loss that ran away."""
    return value if value is not None and math.isfinite(value) else None
