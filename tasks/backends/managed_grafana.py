"""Dashboards in a Grafana that has no files, Amazon's for one, through Grafana's HTTP API.

GRAFANA_URL    https://g-....grafana-workspace.REGION.amazonaws.com
GRAFANA_TOKEN  of a service account of the workspace with the role Editor
"""

import json
import os
from typing import Any, Self

import httpx
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

_TIMEOUT_S = 30
_TRIES = 3
_BUSY = (429, 502, 503, 504)
_NOT_OURS = ("id", "version")
"""What Grafana itself counts in a dashboard."""


class ManagedGrafana:
    """One folder of one Grafana; what lies in it already is replaced, and only if it differs."""

    def __init__(self, url: str, token: str, *, wait_s: float = 1.0) -> None:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S)
        self._retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(_TRIES),
            wait=wait_exponential(multiplier=wait_s, max=10),
            reraise=True,
        )

    @classmethod
    def from_environment(cls) -> Self:
        """Raises RuntimeError, one line: address or key is missing, or the key would be seen."""
        url, token = os.environ.get("GRAFANA_URL", ""), os.environ.get("GRAFANA_TOKEN", "")
        if not url or not token:
            raise RuntimeError(
                "set GRAFANA_URL to the workspace's address and GRAFANA_TOKEN to the token of a "
                "service account with the role Editor"
            )
        parsed = httpx.URL(url)
        if parsed.scheme != "https" and parsed.host != "127.0.0.1":
            raise RuntimeError("GRAFANA_URL has to begin with https://: the token is a secret")
        return cls(url.rstrip("/"), token)

    def ensure_folder(self, uid: str, title: str) -> None:
        """Raises RuntimeError, one line: Grafana is away or refuses."""
        if self._ask("GET", f"/api/folders/{uid}", may_be_absent=True) is None:
            self._ask("POST", "/api/folders", {"uid": uid, "title": title})

    def upload(self, text: str, folder: str) -> str:
        """Have this dashboard in the folder; `created`, `updated` or `unchanged`.

        Raises:
            RuntimeError: Grafana is away or refuses; one line that names the next move.
        """
        dashboard = json.loads(text)
        found = self._ask("GET", f"/api/dashboards/uid/{dashboard['uid']}", may_be_absent=True)
        if found and found["meta"].get("folderUid") == folder:
            there = {key: v for key, v in found["dashboard"].items() if key not in _NOT_OURS}
            if there == {key: v for key, v in dashboard.items() if key not in _NOT_OURS}:
                return "unchanged"
        body = {
            "dashboard": {**dashboard, "id": None},
            "folderUid": folder,
            "message": "uploaded by Ariadne",
            "overwrite": True,
        }
        self._ask("POST", "/api/dashboards/db", body)
        return "updated" if found else "created"

    def _ask(self, method: str, path: str, body: Any = None, *, may_be_absent: bool = False) -> Any:
        try:
            return self._retrying(self._ask_once, method, path, body, may_be_absent)
        except httpx.HTTPStatusError as error:
            raise RuntimeError(_advice(error.response)) from None
        except httpx.HTTPError as error:
            raise RuntimeError(f"Grafana is away ({error}): look at GRAFANA_URL") from None

    def _ask_once(self, method: str, path: str, body: Any, may_be_absent: bool) -> Any:
        answer = self._client.request(method, path, json=body)
        if answer.status_code == 404 and may_be_absent:
            return None
        return answer.raise_for_status().json()


def _may_pass(error: BaseException) -> bool:
    """A moment later the same may work."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _BUSY
    return isinstance(error, httpx.TransportError)


def _advice(response: httpx.Response) -> str:
    said = " ".join(response.text.split())[:200]
    known = {
        401: "GRAFANA_TOKEN is not valid or has ended: make another one in the workspace",
        403: "GRAFANA_TOKEN may not do this: its service account needs the role Editor",
    }
    what = known.get(response.status_code, f"Grafana refuses {response.request.url.path}")
    return f"{what} ({response.status_code}: {said})"
