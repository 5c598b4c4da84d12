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
def count_surely(dashboard_url: str, session: httpx.Auth | None = None) -> int:
    """Silence for a moment is not death: a wrong answer would cost the cluster and its jobs."""
    return count_nodes(dashboard_url, session)


def count_nodes(dashboard_url: str, session: httpx.Auth | None = None) -> int:
    """Raylets alive; 0 where the dashboard does not answer."""
    try:
        url = f"{dashboard_url}/api/v0/nodes"
        answer = httpx.get(url, timeout=_TIMEOUT_S, auth=session)
        nodes: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]["result"]
    except (httpx.HTTPError, ValueError):
        return 0
    return sum(node["state"] == "ALIVE" for node in nodes)
