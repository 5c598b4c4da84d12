"""Ray's dashboard from outside of the cluster, through HyperPod's Ray endpoint operator.

It speaks what `sagemaker_ray://cluster/namespace` means to the toolkit for Ray on SageMaker AI: a
RayDashboardConnection is created in Kubernetes, its answer holds an address with a token, and the
address swaps the token for a session's cookie, good for some hours. Only who has created the
RayCluster gets one.
"""

import threading
from collections.abc import Generator
from http.client import HTTPException
from http.cookies import SimpleCookie
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

import httpx

from configs.kuberay import KubeRayConfig
from tasks.backends.kubernetes_api import Kind, KubernetesApi, KubernetesError

CONNECTIONS = Kind(
    "raydashboardconnections", "connection.access.sagemaker.amazonaws.com", "v1alpha1"
)
_COOKIE = "ray_session"
_TIMEOUT_S = 30
_EXPIRED = (401, 302, 303, 307)
"""A session that has ended is refused, or led to where people log in."""
_ADVICE = {
    401: "its credentials have expired: log in again",
    403: "only who has created the RayCluster may: run under that role",
    404: "is HyperPod's Ray endpoint operator installed?",
}


class NotOpen(ConnectionError):
    """The dashboard has no address yet, or does not answer: it may later."""


class DashboardConnection(httpx.Auth):
    """Address and session of one RayCluster's dashboard. Safe to use from several threads."""

    def __init__(self, api: KubernetesApi, cluster: str) -> None:
        self._api = api
        self._cluster = cluster
        self._url = ""
        self._cookie = ""
        self._lock = threading.Lock()

    @classmethod
    def of(cls, kuberay: KubeRayConfig, cluster: str) -> "DashboardConnection | None":
        """None where the profile reaches the dashboard by an address of its own."""
        if not kuberay.by_connection:
            return None
        return cls(KubernetesApi.connect(kuberay.namespace, kuberay.api), cluster)

    def url(self) -> str:
        """Where the dashboard answers to who has a session; one is opened for it.

        Raises:
            NotOpen: there is no address yet, or it does not answer.
            ValueError: there never will be one with these rights; says why.
        """
        if not self._url:
            self._open("")
        return self._url

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        """Send the session along, and once more with a new one where it has ended."""
        used = self._session("")
        request.headers["Cookie"] = f"{_COOKIE}={used}"
        response = yield request
        if response.status_code in _EXPIRED:
            request.headers["Cookie"] = f"{_COOKIE}={self._session(used)}"
            yield request

    def _session(self, ended: str) -> str:
        """A session other than the one that has ended."""
        try:
            return self._open(ended)
        except NotOpen as error:
            raise httpx.ConnectError(str(error)) from None

    def _open(self, ended: str) -> str:
        with self._lock:
            if not self._cookie or self._cookie == ended:
                self._cookie = ""
                url, token = self._connect()
                self._cookie = self._swap(url, token)
                self._url = url
            return self._cookie

    def _connect(self) -> tuple[str, str]:
        """Address and token."""
        body = {
            "apiVersion": f"{CONNECTIONS.group}/{CONNECTIONS.version}",
            "kind": "RayDashboardConnection",
            "metadata": {"generateName": f"{self._cluster}-"},
            "spec": {"clusterName": self._cluster},
        }
        try:
            made = self._api.ask_for(CONNECTIONS, body)
        except KubernetesError as error:
            raise self._refusal(error.status, str(error)) from None
        parts = urlsplit(made.get("status", {}).get("connectionUrl", ""))
        tokens = parse_qs(parts.query).get("token", [])
        if not parts.netloc or not tokens:
            raise NotOpen(f"the dashboard of RayCluster {self._cluster} has no address yet")
        return f"{parts.scheme}://{parts.netloc}", tokens[0]

    def _swap(self, url: str, token: str) -> str:
        """The cookie for a token. A token is a secret, so no message holds the address asked."""
        status, cookies = _get(f"{url}/bearer-auth?{urlencode({'token': token})}", url)
        if status >= 400:
            raise self._refusal(status, f"{url} answers {status}")
        if _COOKIE not in cookies:
            raise NotOpen(f"the dashboard at {url} gives no session")
        return cookies[_COOKIE].value

    def _refusal(self, status: int, said: str) -> Exception:
        what = f"no way to the dashboard of RayCluster {self._cluster}: {said}"
        if status in _ADVICE:
            return ValueError(f"{what}; {_ADVICE[status]}")
        return NotOpen(what)


class _Stay(HTTPRedirectHandler):
    """The answer to a token may lead to a page for people: its cookie is all that counts."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _get(address: str, shown: str) -> tuple[int, SimpleCookie]:
    """Status and cookies of an address that is a secret: httpx would log it, and the cookie too.

    Raises:
        NotOpen: no answer; names `shown` only.
    """
    try:
        with build_opener(_Stay).open(address, timeout=_TIMEOUT_S) as answer:
            status, headers = answer.status, answer.headers
    except HTTPError as error:
        status, headers = error.code, error.headers
    except (OSError, HTTPException) as error:
        what = type(error).__name__
        raise NotOpen(f"the dashboard at {shown} does not answer: {what}") from None
    return status, SimpleCookie("; ".join(headers.get_all("Set-Cookie", [])))
