"""Rollout and serving: episodes in training, the endpoint, and vLLM's own metrics.

On a cluster SkyRL has vLLM's metrics go through Ray, under names that begin with `ray_`.
"""

from tasks.dashboards.plan import Dashboard, Query, lines, number


def _vllm(name: str) -> str:
    """Either way; Ray's versions differ in whether they put `_total` behind a counter."""
    through_ray = name.replace("_total", "(_total)?")
    return f'{{__name__=~"vllm:{name}|ray_vllm_{through_ray}"}}'


def _rate(name: str, legend: str) -> Query:
    return Query(f"sum by (serves) (rate({_vllm(name)}[$__rate_interval]))", legend, "vllm")


def _quantile(name: str, quantile: float) -> Query:
    rate = f"rate({_vllm(f'{name}_bucket')}[$__rate_interval])"
    legend = f"{{{{serves}}}} p{100 * quantile:.0f}"
    expression = f"histogram_quantile({quantile}, sum by (serves, le) ({rate}))"
    return Query(expression, legend, "vllm traffic")


def _rollout(metric: str) -> Query:
    expression = f'rate(ariadne_rollout_{metric}_total{{run=~"$run"}}[$__rate_interval])'
    return Query(expression, "{{run}}")


SERVING = Dashboard(
    uid="ariadne-serving",
    title="Ariadne: rollout and serving",
    explanation="Episodes of training, the endpoint, and the model servers behind both.",
    panels=(
        number("Endpoint answers", "bool_yes_no", Query("ariadne_endpoint_up", "answers", "host")),
        number(
            "Serves its adapter",
            "bool_yes_no",
            Query("ariadne_endpoint_serves_champion", "serves it", "host"),
        ),
        number("Servers proven", "none", Query("sum(ariadne_replica_proven)", "servers", "host")),
        number(
            "Switches not made yet",
            "none",
            Query("ariadne_endpoint_generations_behind", "switches", "host"),
        ),
        lines(
            "Requests at each server",
            "none",
            Query("ariadne_replica_in_flight_requests", "server {{replica}}", "host"),
        ),
        lines("Episodes per second in training", "none", _rollout("episodes")),
        lines("Turns per second in training", "none", _rollout("turns")),
        lines("Tokens said per second in training", "none", _rollout("tokens")),
        lines(
            "Requests at vLLM",
            "none",
            Query(_vllm("num_requests_running"), "{{serves}} {{instance}} running", "vllm"),
            Query(_vllm("num_requests_waiting"), "{{serves}} {{instance}} waiting", "vllm"),
        ),
        lines(
            "Room for keys and values in use",
            "percentunit",
            Query(_vllm("kv_cache_usage_perc"), "{{serves}} {{instance}}", "vllm"),
            explanation="At 1 requests wait or are begun anew.",
        ),
        lines(
            "Tokens per second",
            "none",
            _rate("prompt_tokens_total", "{{serves}} read"),
            _rate("generation_tokens_total", "{{serves}} said"),
        ),
        lines(
            "Found in the prefix cache",
            "percentunit",
            Query(
                f"sum by (serves) (rate({_vllm('prefix_cache_hits_total')}[$__rate_interval])) /"
                f" sum by (serves) (rate({_vllm('prefix_cache_queries_total')}"
                "[$__rate_interval]))",
                "{{serves}}",
                "vllm traffic",
            ),
        ),
        lines(
            "Requests begun anew for want of room",
            "none",
            _rate("num_preemptions_total", "{{serves}}"),
        ),
        lines(
            "Time to the first token",
            "s",
            _quantile("time_to_first_token_seconds", 0.5),
            _quantile("time_to_first_token_seconds", 0.95),
        ),
        lines(
            "Time between tokens",
            "s",
            _quantile("inter_token_latency_seconds", 0.5),
            _quantile("inter_token_latency_seconds", 0.95),
        ),
        lines(
            "Time of a request",
            "s",
            _quantile("e2e_request_latency_seconds", 0.5),
            _quantile("e2e_request_latency_seconds", 0.95),
        ),
        lines(
            "Requests ended, by reason",
            "none",
            Query(
                f"sum by (serves, finished_reason) (rate({_vllm('request_success_total')}"
                "[$__rate_interval]))",
                "{{serves}} {{finished_reason}}",
                "vllm",
            ),
        ),
    ),
)
