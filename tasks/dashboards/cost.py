"""Cost: devices held by training, the part that failures took, and the price of a point."""

from tasks.dashboards.plan import Dashboard, Need, Panel, Query, each_run, lines, number, of_run

_POINTS = (
    '(100 * (ariadne_gate_success_ratio{run=~"$run"} - ariadne_gate_base_success_ratio'
    '{run=~"$run"}) > 0)'
)


def _hours(metric: str, legend: str = "{{run}} {{device}} hours") -> Query:
    return Query(f'ariadne_{metric}{{run=~"$run"}} / 3600', legend)


def _per_point(title: str, unit: str, cost: str, needs: Need) -> Panel:
    expression = f"{cost} / on (job, instance, run) group_left () {_POINTS}"
    return number(
        title,
        unit,
        Query(expression, "{{run}}", needs),
        explanation="A point is one percent of the fixed mazes more than the base solves.",
        width=6,
    )


COST = Dashboard(
    uid="ariadne-cost",
    title="Ariadne: cost",
    explanation="What the attempts at training held: GPUs, or cores where there are none.",
    panels=(
        number("Device hours held", "none", _hours("device_seconds_total"), width=6),
        number("Device hours lost", "none", _hours("device_lost_seconds_total"), width=6),
        number("Paid", "currencyUSD", each_run("cost_dollars_total", "prices"), width=6),
        number(
            "Paid for nothing",
            "currencyUSD",
            each_run("cost_lost_dollars_total", "prices"),
            width=6,
        ),
        number(
            "Share lost",
            "percentunit",
            Query(
                'ariadne_device_lost_seconds_total{run=~"$run"}'
                ' / (ariadne_device_seconds_total{run=~"$run"} > 0)',
                "{{run}}",
            ),
            width=6,
        ),
        _per_point(
            "Device hours per point of success",
            "none",
            'ariadne_device_seconds_total{run=~"$run"} / 3600',
            "gate",
        ),
        _per_point(
            "Dollars per point of success",
            "currencyUSD",
            'ariadne_cost_dollars_total{run=~"$run"}',
            "prices",
        ),
        number(
            "Tokens said per device second",
            "none",
            Query(
                'sum by (run) (ariadne_rollout_tokens_total{run=~"$run"})'
                ' / sum by (run) (ariadne_device_seconds_total{run=~"$run"} > 0)',
                "{{run}}",
            ),
            width=6,
        ),
        lines(
            "Device hours over time",
            "none",
            _hours("device_seconds_total", "{{run}} held"),
            _hours("device_lost_seconds_total", "{{run}} lost"),
            width=12,
        ),
        lines(
            "Dollars over time",
            "currencyUSD",
            of_run("cost_dollars_total", "paid", "prices"),
            of_run("cost_lost_dollars_total", "for nothing", "prices"),
            width=12,
        ),
    ),
)
