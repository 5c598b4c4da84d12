"""evaluate: let the adapter of any step of a run play the fixed mazes, and the gate judge it."""

from typing import Annotated

from prefect import flow
from pydantic import Field

from tasks.cancel import release_cancelled
from tasks.cluster import ray_cluster
from tasks.context import reopen
from tasks.evaluate import evaluate as evaluate_adapter
from tasks.evaluate import find_evaluation
from tasks.evaluation_page import link_report, make_report
from tasks.gate import judge
from tasks.image import build_image
from tasks.registry import register
from tasks.report import report_decision, report_mazes
from tasks.turn import turn

RunId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Step = Annotated[int, Field(ge=1, le=100_000)]


@flow(name="evaluate", flow_run_name="{run_id} step {step}", on_cancellation=[release_cancelled])
def evaluate(run_id: RunId, step: Step) -> int:
    """Play the fixed mazes with one adapter and judge whether it may be hosted.

    Args:
        run_id: Name of the run's folder.
        step: Training step whose adapter shall play.

    Returns:
        How many mazes it solves.
    """
    context = reopen(run_id)
    adapter = context.run.adapter(step)
    with turn(context.run):
        scores = find_evaluation(context, adapter)
        if scores is None:
            image = build_image(context)
            with ray_cluster(context, image):
                scores = evaluate_adapter(context, image, adapter)
        decision = judge(context, scores)
        register(context, decision)
        link_report(context, scores, make_report(context, scores, decision))
        report_mazes(context, scores)
        report_decision(decision)
    return scores.num_solved
