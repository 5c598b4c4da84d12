"""Stage evaluate: base, adapter and champion on all fixed mazes, or an error.

The champion is the adapter now in service; it plays by this run's rules, so that the gate can
compare maze by maze. The adapter also plays mazes held out beside the fixed ones.
"""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from configs.jobs import AdapterManifest, HeldOut
from tasks import records
from tasks.adapters import read_intact
from tasks.backends.protocols import Image
from tasks.context import Context
from tasks.hosted import champion
from tasks.plays import (
    are_played,
    base_player,
    candidate_player,
    champion_player,
    inputs_of,
    play,
    read_summary,
)
from tasks.records import EvaluateRecord, PlayedChampion
from tasks.run_dir import Run


def find_evaluation(context: Context, adapter: Path) -> EvaluateRecord | None:
    """The record of this adapter's evaluation, if its results are all there.

    Without those of the champion that serves now it is not complete.
    """
    run, manifest = context.run, require_intact(adapter)
    inputs = inputs_of(run, candidate_player(run, adapter, manifest))
    record = records.find(EvaluateRecord, inputs, run.evaluation(inputs))
    if record is None or not _is_champion_played(context, record):
        return None
    complete = [read_summary(run, folder) for folder in (record.base_results, record.results)]
    held_out = _held_out(run, inputs)
    as_wanted = record.held_out == tuple(each.output for each in held_out)
    return record if all(complete) and as_wanted and are_played(held_out) else None


@task(task_run_name="evaluate", cache_policy=NO_CACHE)
def evaluate(context: Context, image: Image, adapter: Path) -> EvaluateRecord:
    """Play the fixed mazes with all who are compared; what was played before is read.

    Raises:
        ValueError: the adapter is damaged or was trained on another base.
        RuntimeError: a job failed, or not every maze has an outcome.
    """
    run, manifest = context.run, require_intact(adapter)
    if manifest.base_digest != run.file.base_digest:
        raise ValueError(
            f"adapter {adapter} was trained on another base ({manifest.base_digest[:12]}) than "
            f"{run.config.model.path} ({run.file.base_digest[:12]})"
        )
    player = candidate_player(run, adapter, manifest)
    inputs = inputs_of(run, player)
    held_out = _held_out(run, inputs)
    base_results = play(context, image, base_player(run))
    results = play(context, image, player, held_out)
    base, solved = read_summary(run, base_results), read_summary(run, results)
    assert base is not None and solved is not None
    record = EvaluateRecord(
        inputs=inputs,
        step=manifest.step,
        adapter=adapter,
        adapter_digest=manifest.digest,
        mazes_digest=run.file.mazes_digest,
        num_mazes=solved.num_mazes,
        num_solved_base=base.num_solved,
        num_solved=solved.num_solved,
        base_results=base_results,
        results=results,
        champion=_play_champion(context, image, manifest.digest),
        held_out=tuple(each.output for each in held_out),
    )
    records.save(record, run.evaluation(inputs))
    records.save(record, run.records)
    return record


def require_intact(adapter: Path) -> AdapterManifest:
    """The manifest of an adapter that is as it was published.

    Raises:
        ValueError: it is not.
    """
    manifest = read_intact(adapter)
    if manifest is None:
        raise ValueError(
            f"adapter {adapter} is damaged, its files are not those of its manifest: choose "
            "another step; starting post-train again makes that of the last step anew"
        )
    return manifest


def _play_champion(context: Context, image: Image, candidate: str) -> PlayedChampion | None:
    serving = champion(context.home, candidate)
    if serving is None:
        return None
    player = champion_player(context.run, context.home, serving)
    return PlayedChampion(
        run_id=serving.run_id,
        step=serving.step,
        adapter_digest=serving.adapter_digest,
        results=play(context, image, player) if player else None,
    )


def _is_champion_played(context: Context, record: EvaluateRecord) -> bool:
    """The record has the champion that serves now, played, or it still cannot be played."""
    serving, played = champion(context.home, record.adapter_digest), record.champion
    if serving is None or played is None:
        return serving is None and played is None
    if serving.adapter_digest != played.adapter_digest:
        return False
    if played.results is None:
        return champion_player(context.run, context.home, serving) is None
    return read_summary(context.run, played.results) is not None


def _held_out(run: Run, inputs: str) -> tuple[HeldOut, ...]:
    """Mazes of the fixed ones' size, and of the next."""
    config, fixed = run.config.evaluate, run.mazes()
    wanted = ((0, config.held_out_mazes), (2, config.held_out_larger_mazes))
    sets = []
    for larger, num_mazes in wanted:
        if num_mazes:
            height, width = fixed.height + larger, fixed.width + larger
            output = run.held_out(inputs, f"{height}x{width}-{num_mazes}")
            sets.append(HeldOut(height=height, width=width, num_mazes=num_mazes, output=output))
    return tuple(sets)
