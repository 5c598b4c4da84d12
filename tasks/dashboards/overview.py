"""Run overview: does it learn, does it move, what went wrong last, what came of it."""

from tasks.dashboards.plan import Dashboard, Query, each_run, lines, name, number, of_run, stack

OVERVIEW = Dashboard(
    uid="ariadne-overview",
    title="Ariadne: run overview",
    explanation="One glance: whether the run learns, whether it moves, and what came of it.",
    panels=(
        name("Stage", Query('ariadne_run_stage{run=~"$run"} == 1', "{{run}} {{stage}}")),
        number(
            "Steps left",
            "none",
            Query(
                'ariadne_train_steps_planned{run=~"$run"} - ariadne_train_step{run=~"$run"}',
                "{{run}}",
            ),
        ),
        number(
            "Since the last progress",
            "s",
            Query('time() - ariadne_train_progress_timestamp_seconds{run=~"$run"}', "{{run}}"),
            explanation="The watchdog allows five times the slowest of the last steps.",
        ),
        number("Attempts", "none", each_run("attempts_total")),
        number("Success in training", "percentunit", each_run("train_success_recent_ratio")),
        number("Success at the gate", "percentunit", each_run("gate_success_ratio", "gate")),
        lines(
            "Success in training",
            "percentunit",
            of_run("train_success_ratio", "step"),
            of_run("train_success_recent_ratio", "mean"),
            width=12,
        ),
        lines(
            "Success at the gate, with its 95 % interval",
            "percentunit",
            of_run("gate_success_ratio", "adapter", "gate"),
            Query('ariadne_gate_success_bound_ratio{run=~"$run"}', "{{run}} {{bound}}", "gate"),
            of_run("gate_base_success_ratio", "base", "gate"),
            Query(
                'ariadne_gate_held_out_success_ratio{run=~"$run"}',
                "{{run}} held out {{mazes}}",
                "gate",
            ),
            width=12,
        ),
        lines("Step", "none", each_run("train_step"), of_run("checkpoint_step", "checkpoint")),
        stack(
            "Where a step's time goes",
            "s",
            Query('ariadne_train_phase_duration_seconds{run=~"$run"}', "{{run}} {{phase}}"),
        ),
        number(
            "Failures so far",
            "none",
            Query(
                'sum by (run, cause) (ariadne_attempt_failures_total{run=~"$run"}) > 0',
                "{{run}} {{cause}}",
                "failure",
            ),
            width=8,
        ),
        name("In service", Query("ariadne_champion_info", "{{run}} {{digest}}", "host")),
        number(
            "Serves its adapter",
            "bool_yes_no",
            Query("ariadne_endpoint_serves_champion", "serves it", "host"),
        ),
        lines("Flow runs", "none", Query("ariadne_flow_runs", "{{state}}", "prefect")),
        number("Alerts", "none", Query('count(ALERTS{alertstate="firing"}) or vector(0)', "fire")),
    ),
)
