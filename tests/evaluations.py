"""Hand-made evaluations of hand-made episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.mazes import MazeSet
from tasks.context import Context
from tasks.records import EvaluateRecord
from tests.samples import make_context
from tests.walks import write_results


def evaluation(
    folder: Path, mazes: MazeSet, base: Sequence[dict[str, Any]], adapter: Sequence[dict[str, Any]]
) -> tuple[Context, EvaluateRecord]:
    """A run on these mazes, whose base and adapter of step 6 have played them."""
    file = folder / "mazes.json"
    file.write_text(mazes.model_dump_json())
    played = [len(each["turns"]) for each in (*base, *adapter)]
    turns = max(*played, *mazes.turns_needed())
    context = make_context(folder, mazes__test_set=str(file), mazes__max_turns=turns)
    scores = EvaluateRecord(
        inputs="0" * 64,
        step=6,
        adapter=context.run.adapter_folder(6),
        adapter_digest="a" * 64,
        mazes_digest=mazes.digest,
        num_mazes=len(mazes.mazes),
        num_solved_base=sum(each["solved"] for each in base),
        num_solved=sum(each["solved"] for each in adapter),
        base_results=write_results(context.run.evaluation("base"), mazes, base),
        results=write_results(context.run.evaluation("adapter"), mazes, adapter),
        champion=None,
        held_out=(),
    )
    return context, scores
