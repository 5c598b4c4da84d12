"""What a dashboard is made of, without any word of Grafana's.

Queries are PromQL with `$run`, a regular expression of run names, and Grafana's
`$__rate_interval`.
"""

from dataclasses import dataclass
from typing import Literal

Need = Literal[
    "", "failure", "gate", "gpu", "host", "kl", "prefect", "prices", "ray", "vllm", "vllm traffic"
]
REASONS: dict[Need, str] = {
    "failure": "no attempt has failed yet",
    "gate": "no adapter was judged yet",
    "gpu": "there is no GPU",
    "host": "nothing is hosted",
    "kl": "train.kl_coefficient is 0, so there is no reference model",
    "prefect": "no Prefect server is asked",
    "prices": "the profile has no prices: see its section cost",
    "ray": "no Ray cluster runs",
    "vllm": "no model server runs",
    "vllm traffic": "no model server had a request of late",
}
"""Why a query may have no data."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression; its legend has labels in double braces."""

    expression: str
    legend: str
    needs: Need = ""
    """What has to be there for it to have data."""


@dataclass(frozen=True)
class Panel:
    """A title, a unit of Grafana's, and what is drawn."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["lines", "name", "number", "stack"] = "lines"
    explanation: str = ""
    width: int = 8
    """Of 24 columns."""


@dataclass(frozen=True)
class Dashboard:
    """Panels in rows from the left; `uid` is its name in every Grafana, for good."""

    uid: str
    title: str
    explanation: str
    panels: tuple[Panel, ...]


def lines(title: str, unit: str, *queries: Query, explanation: str = "", width: int = 8) -> Panel:
    """Curves over time."""
    return Panel(title, unit, queries, "lines", explanation, width)


def stack(title: str, unit: str, *queries: Query, explanation: str = "", width: int = 8) -> Panel:
    """Areas that add up."""
    return Panel(title, unit, queries, "stack", explanation, width)


def number(title: str, unit: str, *queries: Query, explanation: str = "", width: int = 4) -> Panel:
    """The newest values, large."""
    return Panel(title, unit, queries, "number", explanation, width)


def name(title: str, query: Query) -> Panel:
    """What the labels say, large; the value is always 1."""
    return Panel(title, "none", (query,), "name", "", 4)


def each_run(metric: str, needs: Need = "") -> Query:
    """A metric of the chosen runs, a curve for each."""
    return Query(f'ariadne_{metric}{{run=~"$run"}}', "{{run}}", needs)


def of_run(metric: str, legend: str, needs: Need = "") -> Query:
    """A metric of the chosen runs among others in one panel."""
    return Query(f'ariadne_{metric}{{run=~"$run"}}', f"{{{{run}}}} {legend}", needs)
