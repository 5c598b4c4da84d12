"""Stage gate: may the adapter serve? By its outcomes on the fixed mazes, against base and champion.

The decision is a record either way, and hosting takes nothing but that record.
"""

import math
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.jobs import EvaluationSummary
from configs.schema import GateConfig
from tasks import records
from tasks.context import Context
from tasks.evaluate import require_intact
from tasks.hosted import champion, is_replaced, is_rolled_back
from tasks.paired import pair, wilson
from tasks.plays import candidate_player, inputs_of, read_any_summary
from tasks.records import Comparison, EvaluateRecord, GateRecord, HeldOutScore
from tasks.run_dir import Run

NOT_PROMOTED = "NotPromoted"
"""State of a flow run that did all its work and whose adapter may not serve."""


@task(task_run_name="gate", cache_policy=NO_CACHE)
def judge(context: Context, scores: EvaluateRecord) -> GateRecord:
    """Decide by the `[gate]` section of the configuration, and record it.

    Raises:
        ValueError: a maze has no outcome; says what to run.
    """
    run, policy = context.run, context.config.gate
    mine = _summary(scores.results)
    base = _compare(run, mine, scores.base_results, run.file.base_digest)
    played = scores.champion
    against = None
    if played and played.results:
        against = _compare(run, mine, played.results, played.adapter_digest)
    broken = [
        *_broken_by_success(policy, mine),
        *_broken_by_gain(policy, mine, base),
        *_broken_by_champion(policy, scores, against),
        *_broken_by_rollback(context, scores),
        *_broken_by_replacement(context, scores, against),
    ]
    record = GateRecord(
        inputs=scores.inputs,
        run_id=run.run_id,
        step=scores.step,
        adapter=scores.adapter,
        adapter_digest=scores.adapter_digest,
        base_digest=run.file.base_digest,
        image_digest=run.file.image_digest,
        mazes_digest=scores.mazes_digest,
        num_mazes=mine.num_mazes,
        num_solved=mine.num_solved,
        interval=wilson(mine.num_solved, mine.num_mazes),
        base=base,
        champion_digest=played.adapter_digest if played else None,
        champion=against,
        held_out=tuple(_held_out_score(folder) for folder in scores.held_out),
        policy=policy,
        promoted=not broken,
        reason="; ".join(broken) or _merits(mine, base, against),
    )
    records.save(record, run.evaluation(scores.inputs))
    records.save(record, run.records)
    verdict = "promoted" if record.promoted else "not promoted"
    get_run_logger().info("gate: %s: %s", verdict, record.reason)
    return record


def find_decision(run: Run, adapter: Path) -> GateRecord | None:
    """What the gate last decided on this very adapter, by the rules of play of its run."""
    inputs = inputs_of(run, candidate_player(run, adapter, require_intact(adapter)))
    return records.find(GateRecord, inputs, run.evaluation(inputs))


def require_decision(run: Run, adapter: Path) -> GateRecord:
    """The gate's record on an adapter.

    Raises:
        ValueError: there is none, and which flow makes it; or the adapter is damaged.
    """
    record = find_decision(run, adapter)
    if record is None:
        raise ValueError(
            f"adapter {adapter.name} of run {run.run_id} was not evaluated: "
            "run the deployment evaluate/evaluate for it first"
        )
    return record


def is_outdated(context: Context, decision: GateRecord) -> bool:
    """Another adapter serves, or another policy holds, than when it was decided."""
    serving = champion(context.home, decision.adapter_digest)
    champion_digest = serving.adapter_digest if serving else None
    return decision.champion_digest != champion_digest or decision.policy != context.config.gate


def _broken_by_success(policy: GateConfig, mine: EvaluationSummary) -> list[str]:
    needed = _num_mazes(policy.min_success, mine)
    if mine.num_solved >= needed:
        return []
    return [
        f"solves {mine.num_solved} of {mine.num_mazes}, gate.min_success = {policy.min_success} "
        f"asks for {needed}"
    ]


def _broken_by_gain(policy: GateConfig, mine: EvaluationSummary, base: Comparison) -> list[str]:
    gain, needed = mine.num_solved - base.num_solved, _num_mazes(policy.min_gain, mine)
    if gain >= needed:
        return []
    return [
        f"solves {mine.num_solved}, the base {base.num_solved}, gate.min_gain = "
        f"{policy.min_gain} asks for {needed} more"
    ]


def _broken_by_champion(
    policy: GateConfig, scores: EvaluateRecord, against: Comparison | None
) -> list[str]:
    if scores.champion and against is None:
        return [
            f"the adapter now serving, step {scores.champion.step} of run "
            f"{scores.champion.run_id}, cannot be compared with: its files are gone or changed"
        ]
    if against is None or len(against.losses) <= len(against.wins):
        return []
    if against.p_value > policy.max_loss_p:
        return []
    return [f"{_against_champion(against)}, gate.max_loss_p = {policy.max_loss_p}"]


def _broken_by_rollback(context: Context, scores: EvaluateRecord) -> list[str]:
    """Else a schedule would undo at night what an operator has done by day."""
    rolled_back = is_rolled_back(context.home, scores.adapter_digest)
    return ["it served before and was rolled back"] if rolled_back else []


def _broken_by_replacement(
    context: Context, scores: EvaluateRecord, against: Comparison | None
) -> list[str]:
    """Else two equals that a schedule trains in turn would replace each other for ever."""
    if against is None or not is_replaced(context.home, scores.adapter_digest):
        return []
    if len(against.wins) > len(against.losses):
        return []
    return [f"it served before and was replaced; {_against_champion(against)}"]


def _merits(mine: EvaluationSummary, base: Comparison, against: Comparison | None) -> str:
    solved = f"solves {mine.num_solved} of {mine.num_mazes}, the base {base.num_solved}"
    return f"{solved}; {_against_champion(against)}" if against else solved


def _against_champion(against: Comparison) -> str:
    return (
        f"against the adapter now serving it wins {len(against.wins)} mazes and loses "
        f"{len(against.losses)} (p = {against.p_value:.2g})"
    )


def _num_mazes(share: float, mine: EvaluationSummary) -> int:
    """The fewest mazes that make up the share; 0.3 of 10 are 3, whatever floats say."""
    return math.ceil(share * mine.num_mazes - 1e-9)


def _compare(run: Run, mine: EvaluationSummary, results: Path, digest: str) -> Comparison:
    other = _summary(results)
    paired = pair(mine, other, run.mazes())
    return Comparison(
        digest=digest,
        num_solved=other.num_solved,
        wins=paired.wins,
        losses=paired.losses,
        p_value=paired.p_value,
    )


def _held_out_score(folder: Path) -> HeldOutScore:
    summary = _summary(folder)
    return HeldOutScore(
        name=folder.name.partition("-")[0],
        mazes_digest=summary.mazes_digest,
        num_mazes=summary.num_mazes,
        num_solved=summary.num_solved,
        interval=wilson(summary.num_solved, summary.num_mazes),
    )


def _summary(folder: Path) -> EvaluationSummary:
    summary = read_any_summary(folder)
    if summary is None:
        raise ValueError(f"no results in {folder}: run the deployment evaluate/evaluate again")
    return summary
