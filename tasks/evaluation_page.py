"""The page of an evaluation: one HTML file that needs no network, for a browser or for MLflow.

The model's words are text of unknown origin. They reach the page escaped or as JSON that cannot
end its block, and the page's policy runs the scripts of `tasks/pages` and no others.
"""

import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks.context import Context
from tasks.evaluation_report import EvaluationReport, GateDecision, build_report
from tasks.records import EvaluateRecord, GateRecord, write_whole
from tasks.report import PAGE, report_page
from tasks.track import AWAY_RETRIES, AWAY_RETRY_S, is_away

_SOURCES = Path(__file__).with_name("pages")
_SCRIPTS = ("drawing.js", "charts.js", "replay.js", "start.js")
_DATA = {"max_turns", "num_solvable", "base", "adapter", "lengths", "mazes", "training", "step"}
"""What the scripts draw; the rest of the report is text already."""
_MEANINGS = {
    "solved": "stopped on the target",
    "loop": "repeated the same steps",
    "wall": "lost its turns to walls",
    "unparsable": "lost its turns to words that are no action",
    "stopped early": "stopped away from the target",
    "out of turns": "took too long a way",
}


@task(task_run_name="evaluation report", cache_policy=NO_CACHE)
def make_report(context: Context, scores: EvaluateRecord, decision: GateRecord) -> EvaluationReport:
    """Write the page beside the adapter's results.

    Raises:
        ValueError: one line: the results are incomplete, damaged, or not of these mazes.
    """
    report = build_report(context.run, scores, GateDecision.of(decision))
    page = write_report(report, scores.results)
    get_run_logger().info("report: %s", page)
    return report


@task(
    task_run_name="track report",
    cache_policy=NO_CACHE,
    retries=AWAY_RETRIES,
    retry_delay_seconds=AWAY_RETRY_S,
    retry_condition_fn=is_away,
)
def link_report(context: Context, scores: EvaluateRecord, report: EvaluationReport) -> None:
    """Log the page to the tracker and link it on the flow run's page."""
    page = scores.results / PAGE
    folder = f"evaluation/step_{scores.step}"
    address = context.backends.tracker.log_file(context.run.run_id, page, folder)
    report_page(report, page, address)


def write_report(report: EvaluationReport, folder: Path) -> Path:
    """Write the page into `folder`, whole or not at all; the same report gives the same bytes."""
    page = folder / PAGE
    write_whole(page, render(report))
    return page


def render(report: EvaluationReport) -> str:
    """The page as one HTML text."""
    environment = Environment(
        loader=FileSystemLoader(_SOURCES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "p_value": p_value, "number": number}
    style = _source("evaluation.css")
    script = "\n".join(_source(name) for name in _SCRIPTS)
    return environment.get_template("evaluation.html.j2").render(
        report=report,
        data=json.loads(report.model_dump_json(include=_DATA)),
        meanings=_MEANINGS,
        style=Markup(style),
        style_hash=_policy_hash(style),
        script=Markup(script),
        script_hash=_policy_hash(script),
    )


def percent(share: float) -> str:
    """45.3 %, with a space that does not break."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def p_value(value: float) -> str:
    """0.031, and 1.0 x 10^-8 with a real multiplication sign and exponent."""
    if value >= 0.001:
        return f"{value:.3f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return f"{mantissa} × 10{str(int(exponent)).translate(digits)}"  # noqa: RUF001


def number(value: float | None) -> str:
    """Three significant digits; nothing for a value that is not finite."""
    return "" if value is None else f"{value:.3g}"


def _source(name: str) -> str:
    return (_SOURCES / name).read_text()


def _policy_hash(text: str) -> str:
    """The name by which a content security policy knows an inline block."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
