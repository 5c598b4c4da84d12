"""What the flow run's page shows while the run goes on: stages, last steps, timeline and links.

Pure: from a run's progress to the artifacts that tell of it; board_keeper.py puts them up.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from configs.jobs import MetricsLine
from tasks.progress import ENTROPY, STEP_S, SUCCESS, Progress
from tasks.timeline import timeline

STAGE_KEY = "ariadne-stage-{}"
STEPS_KEY = "ariadne-steps"
TIMELINE_KEY = "ariadne-timeline"
LINKS_KEY = "ariadne-links"
_REPORT = "report.html"


@dataclass(frozen=True)
class Piece:
    """An artifact as it should be now."""

    key: str
    type: Literal["progress", "table", "markdown"]
    data: Any
    description: str


@dataclass(frozen=True)
class Places:
    """Addresses that the run's files do not know."""

    tracker: str
    """The page of the run in MLflow."""
    grafana: str = ""
    """The Grafana that has the dashboards; empty without one."""


def pieces_of(progress: Progress, places: Places) -> list[Piece]:
    """All artifacts of the page, the same for the same progress."""
    run_id = progress.run.run_id
    return [
        *_stages(progress),
        _table(STEPS_KEY, _steps(progress), f"The last steps of run {run_id}, newest first"),
        _table(TIMELINE_KEY, _events(progress), f"What happened to run {run_id}, in UTC"),
        Piece(LINKS_KEY, "markdown", _links(progress, places), f"Where run {run_id} is to be seen"),
    ]


def _stages(progress: Progress) -> list[Piece]:
    return [
        Piece(
            STAGE_KEY.format(stage.name),
            "progress",
            round(stage.percent, 1),
            f"{stage.name}: {stage.state}{', ' if stage.detail else ''}{stage.detail}",
        )
        for stage in progress.stages
    ]


def _table(key: str, rows: list[dict[str, str]], description: str) -> Piece:
    return Piece(key, "table", json.dumps(rows), description)


def _steps(progress: Progress) -> list[dict[str, str]]:
    return [_step(line, progress.num_steps) for line in reversed(progress.recent)]


def _step(line: MetricsLine, num_steps: int) -> dict[str, str]:
    when = datetime.fromtimestamp(line.wall_time_ms / 1000, UTC)
    return {
        "step": f"{line.step} of {num_steps}",
        "success": _said(line, SUCCESS, ".1%"),
        "entropy": _said(line, ENTROPY, ".3f"),
        "seconds": _said(line, STEP_S, ".1f"),
        "attempt": str(line.attempt),
        "trained (UTC)": f"{when:%d %b %H:%M:%S}",
    }


def _said(line: MetricsLine, key: str, form: str) -> str:
    return format(line.values[key], form) if key in line.values else "-"


def _events(progress: Progress) -> list[dict[str, str]]:
    return [
        {
            "time": f"{event.time.astimezone(UTC):%d %b %H:%M:%S}",
            "event": event.kind,
            "what": event.what,
        }
        for event in timeline(progress)
    ]


def _links(progress: Progress, places: Places) -> str:
    """Browsers open no files for a page from a server, so their addresses are there to copy."""
    records, run = progress.records, progress.run
    lines = []
    if places.tracker:  # else it was away when the flow began
        lines.append(f"- [MLflow: metrics, files and the registered adapter]({places.tracker})")
    if places.grafana:
        address = f"{places.grafana.rstrip('/')}/d/ariadne-overview?var-run={run.run_id}"
        lines.append(f"- [Grafana: dashboards]({address})")
    if records.cluster and not records.evaluate:
        lines.append(f"- [Ray: the cluster and its jobs]({records.cluster.cluster.dashboard_url})")
    if records.host:
        name = records.host.adapter_name
        lines.append(f"- endpoint: `{records.host.endpoint.url}` as `{name}`")
    report: Path | None = records.evaluate.results / _REPORT if records.evaluate else None
    if report and report.is_file():
        lines.append(f"- report of the evaluation: `{report.resolve().as_uri()}`")
    lines.append(f"- files of the run: `{run.folder}`; its newest logs: `make logs`")
    return "\n".join(lines) + "\n"
