"""The dashboards' files in configs/grafana, and the queries that are in them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from configs.loader import ROOT
from tasks.dashboards.cluster import CLUSTER
from tasks.dashboards.cost import COST
from tasks.dashboards.grafana import to_json
from tasks.dashboards.overview import OVERVIEW
from tasks.dashboards.plan import Dashboard, Need
from tasks.dashboards.serving import SERVING
from tasks.dashboards.training import TRAINING

FOLDER = ROOT / "configs" / "grafana"
DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, TRAINING, SERVING, CLUSTER, COST)


@dataclass(frozen=True)
class Asked:
    """A query as a file has it, with the need that the plan of its panel declares."""

    dashboard: str
    panel: str
    legend: str
    expression: str
    needs: Need


def file_of(plan: Dashboard) -> Path:
    return FOLDER / f"{plan.uid.removeprefix('ariadne-')}.json"


def write_all() -> list[Path]:
    """Write the files anew."""
    FOLDER.mkdir(exist_ok=True)
    for plan in DASHBOARDS:
        file_of(plan).write_text(to_json(plan))
    return [file_of(plan) for plan in DASHBOARDS]


def queries(plan: Dashboard) -> list[Asked]:
    """Those of the file, which is what people see."""
    needs = {query.expression: query.needs for p in plan.panels for query in p.queries}
    return [
        Asked(
            dashboard=plan.title,
            panel=panel["title"],
            legend=target["legendFormat"],
            expression=target["expr"],
            needs=needs[target["expr"]],
        )
        for panel in json.loads(file_of(plan).read_text())["panels"]
        for target in panel["targets"]
    ]


def filled_in(expression: str, *, run: str = ".*", rate: str = "1m") -> str:
    """The expression as Grafana sends it: its variables replaced.

    Raises:
        ValueError: one is left that is not known.
    """
    values = {"$__rate_interval": rate, "$run": run}
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    if left := re.search(r"\$\w+", expression):
        raise ValueError(f"{expression}: Grafana's {left[0]} is not known here")
    return expression
