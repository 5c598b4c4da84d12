"""The nodes of a Ray cluster, by the word of its dashboard."""

from typing import Any

import httpx
from tenacity import retry, retry_if_result, stop_after_attempt, wait_fixed

_TIMEOUT_S = 10


@retry(
    retry=retry_if_result(lambda alive: alive == 0),
    stop=stop_after_attempt(3),
    wait=wait_fixed(2),
    retry_error_callback=lambda state: state.outcome.result() if state.outcome else 0,
)
def count_surely(dashboard_url: str) -> int:
    """Silence for a moment is not death: a wrong answer would cost the cluster and its jobs."""
    return count_nodes(dashboard_url)


def count_nodes(dashboard_url: str) -> int:
    """Raylets alive; 0 where the dashboard does not answer."""
    try:
        answer = httpx.get(f"{dashboard_url}/api/v0/nodes", timeout=_TIMEOUT_S).raise_for_status()
        nodes: list[dict[str, Any]] = answer.json()["data"]["result"]["result"]
    except (httpx.HTTPError, ValueError):
        return 0
    return sum(node["state"] == "ALIVE" for node in nodes)
