"""A picture of a dashboard without Grafana: its queries, asked of Prometheus and plotted."""

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tasks.dashboards.ask import Asker
from tasks.dashboards.plan import REASONS, Dashboard, Panel, Query

matplotlib.use("Agg")

_COLUMNS = 4
_POINTS = 240
_GAP_POINTS = 4
_SHORT_S = 1800
_MOST_IN_LEGEND = 8
_SHOWN_NUMBERS = 4
_THOUSANDS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))

Series = list[tuple[str, list[tuple[float, float]]]]
"""Name in the legend, and moments with values."""


def draw(plan: Dashboard, url: str, since: float, run: str, out: Path) -> Path:
    """Write `out`.png with all panels since then, in seconds since 1970; the file.

    Raises:
        RuntimeError: Prometheus is away or refuses a query.
    """
    step_s = max(1.0, (time.time() - since) / _POINTS)
    num_rows = math.ceil(len(plan.panels) / _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 2.5 * num_rows + 0.6), layout="constrained")
    figure.suptitle(plan.title, fontsize=14, fontweight="bold", x=0.01, ha="left")
    axes = figure.subplots(num_rows, _COLUMNS, squeeze=False).flatten()
    with Asker(url, since, run=run, step_s=step_s) as asker:
        for panel, place in zip(plan.panels, axes, strict=False):
            _panel(panel, place, asker, (since, time.time()))
    for place in axes[len(plan.panels) :]:
        place.set_axis_off()
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_name(f"{out.name}.png")
    figure.savefig(file, dpi=80)
    return file


def _panel(panel: Panel, place: Axes, asker: Asker, span: tuple[float, float]) -> None:
    place.set_title(panel.title, fontsize=9, loc="left")
    place.tick_params(labelsize=7)
    found = [pair for query in panel.queries for pair in _series(query, asker)]
    if not found:
        reasons = {REASONS[query.needs] for query in panel.queries if query.needs}
        _text(place, "; ".join(sorted(reasons)) or "no data", 8, "grey")
    elif panel.kind in ("name", "number"):
        last = _newest(panel, found)
        more = [f"and {len(last) - _SHOWN_NUMBERS} more"] if len(last) > _SHOWN_NUMBERS else []
        size = 14 if len(last) == 1 else 9
        _text(place, "\n".join(last[:_SHOWN_NUMBERS] + more), size, "black")
    else:
        _curves(panel, place, found, span)


def _newest(panel: Panel, found: Series) -> list[str]:
    """The values of the last moment, or the names alone."""
    end = max(points[-1][0] for _, points in found)
    newest = [(name, points[-1][1]) for name, points in found if points[-1][0] == end]
    if panel.kind == "name":
        return [name for name, _ in newest]
    show = _format_of(panel.unit)
    return [f"{show(value)}  {name}" for name, value in newest]


def _series(query: Query, asker: Asker) -> Series:
    found = []
    for each in asker.series(query.expression):
        points = [(moment, float(value)) for moment, value in each["values"]]
        finite = [(moment, value) for moment, value in points if math.isfinite(value)]
        if finite:
            found.append((_legend(query.legend, each["metric"]), finite))
    return found


def _curves(panel: Panel, place: Axes, found: Series, span: tuple[float, float]) -> None:
    begin, end = (datetime.fromtimestamp(moment, UTC) for moment in span)
    gap_s = _GAP_POINTS * max(1.0, (span[1] - span[0]) / _POINTS)
    if panel.kind == "stack":
        _areas(place, found)
    for name, points in found if panel.kind != "stack" else ():
        whole = _with_gaps(points, gap_s)
        moments = [datetime.fromtimestamp(moment, UTC) for moment, _ in whole]
        marker = "." if len(points) == 1 else ""
        values = [value for _, value in whole]
        place.plot(moments, values, linewidth=1.2, marker=marker, label=name)  # ty: ignore
    show = _format_of(panel.unit)
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    if panel.unit == "bool_yes_no":
        place.set_yticks([0, 1])
    place.set_xlim(begin, end)  # ty: ignore
    place.xaxis.set_major_locator(AutoDateLocator(minticks=2, maxticks=5))
    is_short = span[1] - span[0] < _SHORT_S
    place.xaxis.set_major_formatter(DateFormatter("%H:%M:%S" if is_short else "%H:%M"))
    place.grid(alpha=0.3)
    if len(found) <= _MOST_IN_LEGEND:
        place.legend(fontsize=6, loc="best", framealpha=0.5)


def _areas(place: Axes, found: Series) -> None:
    """On top of each other; what is not there at a moment has no height."""
    moments = sorted({moment for _, points in found for moment, _ in points})
    heights = [[dict(points).get(moment, 0.0) for moment in moments] for _, points in found]
    times = [datetime.fromtimestamp(moment, UTC) for moment in moments]
    place.stackplot(times, heights, labels=[name for name, _ in found], alpha=0.7)  # ty: ignore


def _with_gaps(points: list[tuple[float, float]], gap_s: float) -> list[tuple[float, float]]:
    """No line where nothing was measured."""
    whole = points[:1]
    for before, after in pairwise(points):
        if after[0] - before[0] > gap_s:
            whole.append((before[0], math.nan))
        whole.append(after)
    return whole


def _text(place: Axes, text: str, size: int, color: str) -> None:
    place.set_xticks([])
    place.set_yticks([])
    place.text(0.5, 0.5, text, ha="center", va="center", fontsize=size, color=color, wrap=True)


def _legend(legend: str, labels: dict[str, Any]) -> str:
    for label, value in labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend


def _format_of(unit: str) -> Callable[[float], str]:
    """Grafana's units as text."""
    formats: dict[str, Callable[[float], str]] = {
        "percentunit": lambda value: f"{value:.0%}",
        "percent": lambda value: f"{value:.0f}%",
        "s": _duration,
        "bytes": lambda value: f"{_short(value)}B",
        "Bps": lambda value: f"{_short(value)}B/s",
        "currencyUSD": lambda value: f"${value:.3g}",
        "bool_yes_no": lambda value: "yes" if value else "no",
        "sci": lambda value: f"{value:.1e}",
    }
    return formats.get(unit, _short)


def _duration(value: float) -> str:
    for seconds, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(value) >= 2 * seconds:
            return f"{value / seconds:.3g} {word}"
    return f"{value:.3g} s"


def _short(value: float) -> str:
    for size, letter in _THOUSANDS:
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
