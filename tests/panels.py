"""Every query of every panel, executed: it has data of the right shape, or there is a reason.

without = check_panels("http://127.0.0.1:9090", since, missing={"gpu", "kl"})
"""

import math
import re
from collections.abc import Collection
from typing import Any

from tasks.dashboards.ask import Asker
from tasks.dashboards.files import DASHBOARDS, Asked, queries
from tasks.dashboards.plan import REASONS, Need


def check_panels(
    url: str, since: float, missing: Collection[Need], *, run: str = ".*", step_s: float = 5
) -> dict[str, str]:
    """Ask the Prometheus at `url` for everything since then, in seconds since 1970.

    `missing` is what this profile does not have: a query that needs it has to be accepted and to
    be empty. Returns each such query with its reason.
    """
    faults, without = look_at_panels(url, since, missing, run=run, step_s=step_s)
    assert not faults, "\n".join(faults)
    return without


def look_at_panels(
    url: str, since: float, missing: Collection[Need], *, run: str = ".*", step_s: float = 5
) -> tuple[list[str], dict[str, str]]:
    """What is wrong with which query, and as `check_panels` what is rightly without data."""
    faults, without = [], {}
    with Asker(url, since, run=run, step_s=step_s) as asker:
        for asked in [asked for plan in DASHBOARDS for asked in queries(plan)]:
            series = asker.series(asked.expression)
            fault = find_fault(asked, series)
            if asked.needs in missing:
                fault = f"has data, so {asked.needs} is not missing" if series else None
                without[name(asked)] = REASONS[asked.needs]
            if fault:
                faults.append(f"{name(asked)}: {fault}")
    return faults, without


def name(asked: Asked) -> str:
    return f"{asked.dashboard} / {asked.panel} / {asked.legend}"


def find_fault(asked: Asked, series: list[dict[str, Any]]) -> str | None:
    """What keeps a panel from showing this as it means to, or None."""
    if not series:
        return "no data"
    shown = [tuple(labels_of(asked, each).items()) for each in series]
    for each in series:
        absent = [label for label, value in labels_of(asked, each).items() if not value]
        if absent:
            return f"a series without the label {absent[0]} of its legend: {each['metric']}"
        if not any(math.isfinite(float(value)) for _, value in each["values"]):
            return f"a series without one finite number: {each['metric']}"
    if len(set(shown)) < len(shown):
        return f"series that the legend does not tell apart: {shown}"
    return None


def labels_of(asked: Asked, series: dict[str, Any]) -> dict[str, str]:
    """The labels that the legend shows, with their values."""
    labels = re.findall(r"{{(\w+)}}", asked.legend)
    return {label: series["metric"].get(label, "") for label in labels}
