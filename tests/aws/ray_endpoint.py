"""HyperPod's Ray endpoint operator and the dashboard behind it, as strict as its toolkit expects.

Tokens are good once; sessions end when a test says so; nothing is answered without one.
"""

from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from tests.aws.dashboard import Dashboard, Handler
from tests.kubernetes_api import statuses
from tests.kubernetes_api.store import CONNECTION, RAY_CLUSTER, Object, Store

CREATOR = "the creator of the RayCluster"


class _Guarded(Handler):
    def do_GET(self) -> None:
        endpoint: Endpoint = self.server.dashboard  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        if url.path == "/bearer-auth":
            self._swap(endpoint, parse_qs(url.query).get("token", [""])[0])
        elif self._is_known(endpoint):
            super().do_GET()

    def do_POST(self) -> None:
        if self._is_known(self.server.dashboard):  # type: ignore[attr-defined]
            super().do_POST()

    def _is_known(self, endpoint: "Endpoint") -> bool:
        name, _, value = (self.headers.get("Cookie") or "").partition("=")
        if name == "ray_session" and value in endpoint.sessions:
            return True
        self._refuse(endpoint.refusal)
        return False

    def _swap(self, endpoint: "Endpoint", token: str) -> None:
        if endpoint.swap_status:
            self._refuse(endpoint.swap_status)
        elif token not in endpoint.tokens:
            self._refuse(401)
        else:
            endpoint.tokens.remove(token)
            session = str(uuid4())
            endpoint.sessions.append(session)
            self.send_response(302)
            if endpoint.gives_cookie:
                cookie = f"ray_session={session}; Path=/; HttpOnly; SameSite=Lax"
                self.send_header("Set-Cookie", cookie)
            self.send_header("Location", "/")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Location", "/login")
        self.send_header("Content-Length", "0")
        self.end_headers()


class Endpoint(Dashboard):
    """A dashboard with a guard, and the API that leads to it."""

    handler = _Guarded

    def __init__(self, store: Store, num_nodes: int) -> None:
        super().__init__(num_nodes)
        self.tokens: list[str] = []
        self.given: list[str] = []
        """Every token ever given."""
        self.sessions: list[str] = []
        self.caller = CREATOR
        self.gives_address = True
        self.gives_cookie = True
        self.swap_status = 0
        """With which tokens are refused; 0: they are taken."""
        self.refusal = 401
        """For who has no session that is good."""
        self._store = store

    def connect(self, namespace: str, body: Object) -> Object:
        """What the extension API server answers."""
        _check(body)
        cluster = self._store.get(RAY_CLUSTER, namespace, body["spec"]["clusterName"])
        if self.caller != CREATOR:
            raise statuses.forbidden(
                self.caller, "create", CONNECTION.plural, CONNECTION.group, namespace
            )
        annotations = cluster["metadata"].get("annotations", {})
        is_open = annotations.get("access.sagemaker.amazonaws.com/enabled") == "true"
        status = {}
        if is_open and self.gives_address:
            self.tokens.append(str(uuid4()))
            self.given.append(self.tokens[-1])
            address = f"http://127.0.0.1:{self.port}/bearer-auth"
            status = {"connectionUrl": f"{address}?token={self.tokens[-1]}"}
        return body | {"status": status}


def _check(body: Any) -> None:
    """Only what the toolkit sends."""
    about = (body.get("apiVersion"), body.get("kind"))
    if about != (CONNECTION.api_version, CONNECTION.kind):
        raise statuses.bad_request(f"the object provided is unrecognized: {about}")
    unknown = [key for key in body if key not in ("apiVersion", "kind", "metadata", "spec")]
    unknown += [key for key in body["spec"] if key not in ("clusterName", "endpoint")]
    if unknown:
        raise statuses.unknown_fields(CONNECTION.kind, CONNECTION.version, unknown)
    if not (body["metadata"].get("name") or body["metadata"].get("generateName")):
        raise statuses.invalid(CONNECTION.kind, CONNECTION.group, "", ["metadata.name: Required"])
