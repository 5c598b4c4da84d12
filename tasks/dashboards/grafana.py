"""From our plans to the JSON that Grafana reads; the one file that knows the SDK.

The same plan gives the same text, so that a test can tell whether the files are up to date.
"""

import json
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
)

from tasks.dashboards.plan import Dashboard, Panel

_SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
"""Chosen on the page: every Grafana has a Prometheus of another name."""
_TAG = "ariadne"
_ALL_RUNS = VariableOption(selected=True, text="All", value="$__all")


def to_json(plan: Dashboard) -> str:
    """The whole file of a dashboard."""
    builder = (
        dashboard.Dashboard(plan.title)
        .uid(plan.uid)
        .description(plan.explanation)
        .tags([_TAG])
        .editable()
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("Ariadne")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(
            dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus")
        )
        .with_variable(_runs())
    )
    for number, panel in enumerate(plan.panels, start=1):
        builder.with_panel(_panel(panel).id(number))
    return json.dumps(builder.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _runs() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("run")
        .label("Run")
        .query("label_values(ariadne_run_info, run)")
        .datasource(_SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(_ALL_RUNS)
    )


def _panel(plan: Panel) -> Any:
    at_once = plan.kind in ("name", "number")
    panel = _newest(plan) if at_once else _curves(plan)
    panel.title(plan.title).unit(plan.unit).datasource(_SOURCE).span(plan.width)
    if plan.explanation:
        panel.description(plan.explanation)
    for letter, query in zip("ABCDEFGH", plan.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend)
        target.ref_id(letter).datasource(_SOURCE)
        panel.with_target(target.instant() if at_once else target.range())
    return panel


def _newest(plan: Panel) -> stat.Panel:
    shown = BigValueTextMode.NAME if plan.kind == "name" else BigValueTextMode.VALUE_AND_NAME
    return (
        stat.Panel()
        .height(4)
        .text_mode(shown)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def _curves(plan: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM)
    panel = timeseries.Panel().height(8).legend(legend.display_mode(LegendDisplayMode.LIST))
    panel.draw_style(GraphDrawStyle.LINE).line_width(1)
    if plan.kind == "stack":
        panel.fill_opacity(40).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return panel
