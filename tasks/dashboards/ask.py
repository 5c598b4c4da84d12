"""Range queries to a Prometheus, for what draws or checks dashboards without Grafana."""

import time
from typing import Any, Self

import httpx

from tasks.dashboards.files import filled_in

_TIMEOUT_S = 30
_SCRAPES_OF_A_RATE = 4


class Asker:
    """Asks for everything between `since`, in seconds since 1970, and now."""

    def __init__(self, url: str, since: float, *, run: str = ".*", step_s: float = 5) -> None:
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_S)
        self._since = since
        self._run = run
        self._step_s = step_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def series(self, expression: str) -> list[dict[str, Any]]:
        """The series of a panel's expression: `metric` with its labels, `values` over time.

        Raises:
            RuntimeError: Prometheus is away or refuses the expression; says why.
        """
        now = time.time()
        asked = filled_in(
            expression,
            run=self._run,
            rate=f"{max(60, round(_SCRAPES_OF_A_RATE * self._step_s))}s",
        )
        given = {"query": asked, "start": self._since, "end": now, "step": self._step_s}
        try:
            answer = self._client.get("/api/v1/query_range", params=given)
            answer.raise_for_status()
        except httpx.HTTPStatusError as error:
            raise RuntimeError(f"Prometheus refuses {asked}: {error.response.text}") from None
        except httpx.HTTPError as error:
            raise RuntimeError(
                f"no Prometheus at {self._client.base_url} ({error}): `make up` starts one"
            ) from None
        return answer.json()["data"]["result"]
