"""What an operator finds on the flow run's page: the outcome, the 64 mazes, and links."""

from pathlib import Path

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.tasks import task

from configs.jobs import EvaluationSummary
from tasks.context import Context
from tasks.evaluation_report import EvaluationReport
from tasks.records import EvaluateRecord, GateRecord, HostRecord, TrainRecord

SUMMARY_KEY = "ariadne-summary"
MAZES_KEY = "ariadne-mazes"
GATE_KEY = "ariadne-gate"
REPORT_KEY = "ariadne-evaluation"
PAGE = "report.html"


@task(task_run_name="report", cache_policy=NO_CACHE)
def report_run(
    context: Context,
    trained: TrainRecord,
    scores: EvaluateRecord,
    decision: GateRecord,
    hosted: HostRecord | None,
    model_version: str,
    tracked: str,
) -> None:
    """Make the artifacts of a finished run."""
    if hosted:
        create_link_artifact(
            hosted.endpoint.url, "Endpoint", key="ariadne-endpoint", description="OpenAI API"
        )
    report_mazes(context, scores)
    report_decision(decision)
    rows = summary_rows(context, trained, scores, decision, hosted, model_version, tracked)
    create_table_artifact(
        [{"what": what, "value": value} for what, value in rows.items()],
        key=SUMMARY_KEY,
        description=f"Run {context.run.run_id}",
    )
    get_run_logger().info(
        "done: %d of %d mazes before, %d after",
        scores.num_solved_base,
        scores.num_mazes,
        scores.num_solved,
    )


def report_mazes(context: Context, scores: EvaluateRecord) -> None:
    """One row for each fixed maze: what base and adapter made of it."""
    base = EvaluationSummary.model_validate_json((scores.base_results / "summary.json").read_text())
    mine = EvaluationSummary.model_validate_json((scores.results / "summary.json").read_text())
    rows = [
        {
            "maze": maze.seed,
            "turns needed": mine.turns_needed[index],
            "base": base.ends[index],
            "base turns": base.turns[index],
            "adapter": mine.ends[index],
            "adapter turns": mine.turns[index],
        }
        for index, maze in enumerate(context.run.mazes().mazes)
    ]
    description = (
        f"{scores.num_solved_base} of {scores.num_mazes} before, {scores.num_solved} after "
        f"(adapter {scores.adapter_digest[:12]})"
    )
    create_table_artifact(rows, key=MAZES_KEY, description=description)


def report_decision(decision: GateRecord) -> None:
    """What the gate decided and the comparisons it rests on."""
    against = {"base": decision.base, "champion": decision.champion}
    rows = [
        {
            "mazes": f"fixed, against the {name}",
            "solved": f"{decision.num_solved} of {decision.num_mazes}",
            "95 %": _interval(decision.interval),
            "other": str(other.num_solved),
            "won": _seeds(other.wins),
            "lost": _seeds(other.losses),
            "p": f"{other.p_value:.2g}",
        }
        for name, other in against.items()
        if other
    ]
    rows += [
        {
            "mazes": f"held out, {score.name}",
            "solved": f"{score.num_solved} of {score.num_mazes}",
            "95 %": _interval(score.interval),
        }
        for score in decision.held_out
    ]
    create_table_artifact(rows, key=GATE_KEY, description=_verdict(decision))


def _verdict(decision: GateRecord) -> str:
    return f"{'promoted' if decision.promoted else 'not promoted'}: {decision.reason}"


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"


def _seeds(seeds: tuple[int, ...]) -> str:
    """How many mazes and which; they are told by their seeds."""
    return f"{len(seeds)}: {', '.join(map(str, seeds))}" if seeds else "0"


def report_page(report: EvaluationReport, page: Path, address: str) -> None:
    """The evaluation in three lines, and where its page is.

    Browsers open no files for a page from a server, so the file's address is there to copy.
    """
    base, adapter, pairs = report.base.rate, report.adapter.rate, report.comparison
    markdown = f"""\
**{adapter.num_solved} of {adapter.num_mazes}** mazes at step {report.step} \
({adapter.share:.1%}, 95 % interval {adapter.low:.1%} to {adapter.high:.1%}), \
**{base.num_solved}** before ({base.share:.1%}, {base.low:.1%} to {base.high:.1%}).
Only the adapter solves {pairs.wins}, only the base {pairs.losses} \
(McNemar p = {pairs.p_value:.2g}).

[Report with all walks, in MLflow]({address})

The same page as a file, to open in a browser: `{page.resolve().as_uri()}`
"""
    create_markdown_artifact(markdown, key=REPORT_KEY, description="Evaluation report")


def summary_rows(
    context: Context,
    trained: TrainRecord,
    scores: EvaluateRecord,
    decision: GateRecord,
    hosted: HostRecord | None,
    model_version: str,
    link: str,
) -> dict[str, str]:
    """The table that ends a run, in order."""
    return {
        "solved before": f"{scores.num_solved_base} of {scores.num_mazes}",
        "solved after": f"{scores.num_solved} of {scores.num_mazes}",
        **{
            f"held out, {score.name}": f"{score.num_solved} of {score.num_mazes}"
            for score in decision.held_out
        },
        "gate": _verdict(decision),
        "training": f"{trained.step} steps in {trained.seconds / 60:.1f} min",
        "attempts": str(trained.attempts),
        "adapter": f"{scores.adapter_digest[:16]} (version {model_version})",
        "endpoint": f"{hosted.endpoint.url} as {hosted.adapter_name}" if hosted else "as before",
        "report": str(scores.results / PAGE),
        "run folder": str(context.run.folder),
        "MLflow": link,
    }
