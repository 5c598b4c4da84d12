"""Every query of every panel, executed: it has data of the right shape, or there is a reason.

told = check_panels("http://127.0.0.1:9090", since, missing={"gpu", "kl"})
"""

import math
import re
import time
from collections.abc import Collection
from typing import Any

import httpx

from tasks.dashboards.files import DASHBOARDS, Asked, filled_in, queries
from tasks.dashboards.plan import REASONS, Need


def check_panels(
    url: str, since: float, missing: Collection[Need], *, run: str = ".*", step_s: float = 5
) -> dict[str, str]:
    """Ask the Prometheus at `url` for everything since then, in seconds since 1970.

    `missing` is what this profile does not have: a query that needs it has to be accepted and may
    be empty. Returns each such query with its reason.
    """
    faults, without = [], {}
    for plan in DASHBOARDS:
        for asked in queries(plan):
            series = ask(url, asked, since, run, step_s)
            fault = find_fault(asked, series)
            if fault and asked.needs in missing and not series:
                without[name(asked)] = REASONS[asked.needs]
            elif fault:
                faults.append(f"{name(asked)}: {fault}")
    assert not faults, "\n".join(faults)
    return without


def name(asked: Asked) -> str:
    return f"{asked.dashboard} / {asked.panel} / {asked.legend}"


def ask(url: str, asked: Asked, since: float, run: str, step_s: float) -> list[dict[str, Any]]:
    """The series of a range query up to now; fails where Prometheus refuses the expression."""
    now = time.time()
    span_s = max(60, math.ceil(now - since))
    rate = f"{max(60, math.ceil(4 * step_s))}s"
    expression = filled_in(asked.expression, run=run, rate=rate, span=f"{span_s}s")
    given = {"query": expression, "start": since, "end": now, "step": step_s}
    answer = httpx.get(f"{url}/api/v1/query_range", params=given, timeout=30)
    assert answer.is_success, f"{name(asked)}: {answer.text}"
    data = answer.json()["data"]
    assert data["resultType"] == "matrix"
    return data["result"]


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
    return {
        label: series["metric"].get(label, "") for label in re.findall(r"{{(\w+)}}", asked.legend)
    }
