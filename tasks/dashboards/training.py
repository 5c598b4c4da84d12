"""Training health: the curves by which one sees early that a run goes wrong, and why."""

from tasks.dashboards.plan import Dashboard, Query, each_run, lines, of_run

TRAINING = Dashboard(
    uid="ariadne-training",
    title="Ariadne: training health",
    explanation="What the trainer says of its newest step.",
    panels=(
        lines("Reward", "none", each_run("train_reward")),
        lines(
            "Success",
            "percentunit",
            of_run("train_success_ratio", "step"),
            of_run("train_success_best_ratio", "best mean"),
            of_run("train_pass_at_k_ratio", "pass at k"),
            explanation="Groups that always or never succeed teach nothing.",
        ),
        lines("Mean absolute advantage", "none", each_run("train_advantage_abs")),
        lines(
            "Entropy (nats)",
            "none",
            each_run("train_entropy_nats"),
            explanation="Falling to 0: nothing is explored any more.",
        ),
        lines("KL to the base (nats)", "none", each_run("train_kl_nats", "kl")),
        lines("Share of clipped tokens", "percentunit", each_run("train_clip_ratio")),
        lines("Gradient norm", "none", each_run("train_gradient_norm")),
        lines("Policy loss", "none", each_run("train_policy_loss")),
        lines("Learning rate", "sci", each_run("train_learning_rate")),
        lines(
            "Trainer and server differ by (nats)",
            "sci",
            of_run("train_logprob_gap_nats", "mean"),
            of_run("train_logprob_gap_max_nats", "max"),
            explanation="Above 0.01 the server plays another policy than the one that is trained.",
        ),
        lines(
            "Tokens said in an episode",
            "none",
            of_run("train_response_tokens", "mean"),
            of_run("train_response_max_tokens", "max"),
        ),
        lines("Turns in an episode", "none", each_run("train_turns")),
        lines(
            "Mistakes in an episode",
            "none",
            of_run("train_wall_hits", "into a wall"),
            of_run("train_unparsable_answers", "no action"),
        ),
        lines("Seconds of a step", "s", each_run("train_step_duration_seconds")),
        lines(
            "Share of the time, by phase",
            "percentunit",
            Query(
                'ariadne_train_phase_seconds_total{run=~"$run"} / on (job, instance, run)'
                " group_left () sum by (job, instance, run)"
                ' (ariadne_train_phase_seconds_total{run=~"$run"})',
                "{{run}} {{phase}}",
            ),
        ),
        lines(
            "Tokens trained on, per second and device",
            "none",
            each_run("train_device_tokens_per_second"),
        ),
        lines("Seconds of a checkpoint", "s", each_run("checkpoint_duration_seconds")),
        lines("Size of a checkpoint", "bytes", each_run("checkpoint_bytes")),
        lines("Steps that a failure now would cost", "none", each_run("checkpoint_steps_since")),
    ),
)
