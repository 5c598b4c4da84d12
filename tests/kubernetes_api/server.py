"""The stand-in's HTTP side: paths, tokens, rights, watches, and faults on demand."""

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, Self
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.kubernetes_api import statuses
from tests.kubernetes_api.operators import Operator, Operators, does_nothing
from tests.kubernetes_api.rbac import Call, Rule
from tests.kubernetes_api.selectors import matches
from tests.kubernetes_api.statuses import Object, Refusal
from tests.kubernetes_api.store import CONNECTION, KINDS, POD, Change, Served, Store

TOKEN = "a-token-of-the-control-plane"
USER = "system:serviceaccount:ariadne:control-plane"
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<sub>status|log))?)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class KubernetesServer:
    """One API server with its store, its operator and a record of all calls."""

    def __init__(self, operator: Operator = does_nothing) -> None:
        self.store = Store()
        self.operators = Operators(self.store, operator)
        self.calls: list[Call] = []
        """Every call that was answered or refused for want of rights, in order."""
        self.rules: list[Rule] | None = None
        """What the user may do; None: everything."""
        self.token = TOKEN
        self.accepts: Callable[[str], bool] = lambda token: token == self.token
        """Which tokens are good."""
        self.connect: Callable[[str, Object], Object] | None = None
        """Answers RayDashboardConnections of a namespace; None: their kind is not installed."""
        self.faults: deque[tuple[int, str]] = deque()
        """Status and Retry-After, empty for none, with which the next calls fail; 0 hangs up."""
        self.lost_answers = 0
        """So many next calls that change something do so, but their answers do not arrive."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.kubernetes = self  # type: ignore[attr-defined]
        self.is_closing = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closing = True
        self._http.shutdown()
        self._http.server_close()
        self.operators.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def access(self, folder: Path) -> dict[str, Any]:
        """Settings of `cluster.kuberay.api`, with a kubeconfig in this folder."""
        path = folder / "kubeconfig"
        named = {
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "here", "user": "me"}}],
        }
        head = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        path.write_text(yaml.safe_dump(head | named))
        return {"access": "kubeconfig", "kubeconfig": path}

    def rights_used(self) -> set[tuple[str, str, str]]:
        """Group, resource and verb of all calls."""
        return {call.right for call in self.calls}

    def made(self, verb: str, resource: str) -> list[Call]:
        return [call for call in self.calls if (call.verb, call.resource) == (verb, resource)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # an answer goes out as one packet, else the kernel holds its second half back

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(length)
        try:
            self._fail_on_demand()
            self._answer(data)
        except Refusal as refusal:
            self._send(refusal.code, refusal.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    @property
    def _server(self) -> KubernetesServer:
        return self.server.kubernetes  # type: ignore[attr-defined]

    def _fail_on_demand(self) -> None:
        if not self._server.faults:
            return
        status, retry_after = self._server.faults.popleft()
        if status == 0:
            self._hang_up()
        self._retry_after = retry_after
        message = "the server is currently unable to handle the request"
        reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
        raise Refusal(status, reasons.get(status, "InternalError"), message)

    def _hang_up(self) -> NoReturn:
        self.close_connection = True
        self.connection.close()
        raise ConnectionAbortedError

    _retry_after = ""

    def _answer(self, data: bytes) -> None:
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        if scheme != "Bearer" or not self._server.accepts(token):
            raise statuses.unauthorized()
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        kind, namespace, name, sub = _route(url.path)
        verb = _verb(self.command, name, query)
        resource = f"{kind.plural}/{sub}" if sub else kind.plural
        call = Call(verb, kind.group, resource, namespace, name, tuple(sorted(query.items())))
        self._server.calls.append(call)
        rules = self._server.rules
        if rules is not None and not any(rule.allows(call) for rule in rules):
            raise statuses.forbidden(USER, verb, resource, kind.group, namespace)
        body = self._body(data)
        if verb == "watch":
            self._watch(kind, namespace, query)
        elif sub == "log":
            self._log(namespace, name, query)
        else:
            code, answer = self._do(verb, kind, namespace, name, sub, query, body)
            if self._server.lost_answers and self.command != "GET":
                self._server.lost_answers -= 1
                self._hang_up()
            self._send(code, answer)

    def _body(self, data: bytes) -> Object:
        if not data:
            return {}
        kind = (self.headers.get("Content-Type") or "").split(";")[0]
        if self.command == "PATCH" and kind != "application/merge-patch+json":
            raise statuses.unsupported(kind)
        try:
            body = json.loads(data)
        except ValueError as error:
            raise statuses.bad_request(f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise statuses.bad_request("the body is no object")
        return body

    def _do(
        self,
        verb: str,
        kind: Served,
        namespace: str,
        name: str,
        sub: str,
        query: dict[str, str],
        body: Object,
    ) -> tuple[int, Object]:
        store, on_status = self._server.store, sub == "status"
        if kind is CONNECTION:
            if self._server.connect is None or verb != "create":
                raise statuses.no_such_path()
            return 201, self._server.connect(namespace, body)
        if on_status and not (kind.has_status and verb in ("get", "update", "patch")):
            raise statuses.no_such_path()
        match verb:
            case "get":
                return 200, store.get(kind, namespace, name)
            case "list":
                return 200, self._list(kind, namespace, query)
            case "create":
                return 201, store.create(kind, namespace, body)
            case "update":
                return 200, store.replace(kind, namespace, name, body, status=on_status)
            case "patch":
                return 200, store.patch(kind, namespace, name, body, status=on_status)
            case "delete":
                deleted = store.delete(kind, namespace, name, _delete_options(body, query))
                return 200, deleted
        raise statuses.no_such_path()

    def _list(self, kind: Served, namespace: str, query: dict[str, str]) -> Object:
        items = [
            item
            for item in self._server.store.items(kind, namespace)
            if matches(item, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        ]
        first = int(query.get("continue") or 0)
        limit = int(query.get("limit") or 0) or len(items) or 1
        meta: Object = {"resourceVersion": str(self._server.store.version)}
        if first + limit < len(items):
            meta |= {
                "continue": str(first + limit),
                "remainingItemCount": len(items) - first - limit,
            }
        return {
            "apiVersion": kind.api_version,
            "kind": f"{kind.kind}List",
            "metadata": meta,
            "items": items[first : first + limit],
        }

    def _watch(self, kind: Served, namespace: str, query: dict[str, str]) -> None:
        timer = threading.Event()
        if seconds := query.get("timeoutSeconds"):
            clock = threading.Timer(float(seconds), timer.set)
            clock.daemon = True
            clock.start()
        store = self._server.store
        asked = int(query.get("resourceVersion") or 0)
        with store.changed:
            since = asked or store.version
            # Whoever names no version is first told what there is.
            there = [] if asked else store.items(kind, namespace)
        store.check_version(since)
        known = [Change(since, kind, "ADDED", item) for item in there]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

        def is_over() -> bool:
            return timer.is_set() or self._server.is_closing

        try:
            changes = chain(known, store.changes(kind, since, is_over, 0.05))
            for line in _lines(changes, namespace, query):
                data = json.dumps(line).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # whoever watched has seen enough
            self.close_connection = True

    def _log(self, namespace: str, name: str, query: dict[str, str]) -> None:
        store = self._server.store
        pod = store.get(POD, namespace, name)
        containers = [each["name"] for each in pod["spec"]["containers"]]
        container = query.get("container") or containers[0]
        if container not in containers:
            raise statuses.bad_request(f"container {container} is not valid for pod {name}")
        if (name, container) not in store.logs:
            raise statuses.bad_request(
                f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating'
            )
        lines = store.logs[name, container].splitlines(keepends=True)
        if tail := query.get("tailLines"):
            lines = lines[-int(tail) :]
        self._write(200, "".join(lines).encode(), "text/plain")

    def _send(self, code: int, body: Object) -> None:
        self._write(code, json.dumps(body).encode(), "application/json")

    def _write(self, code: int, data: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        if self._retry_after:
            self.send_header("Retry-After", self._retry_after)
            self._retry_after = ""
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        """One connection; a client that hangs up is no failure of the server."""
        try:
            super().handle()
        except (ConnectionError, OSError, ValueError):
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            return


def _route(path: str) -> tuple[Served, str, str, str]:
    """Kind, namespace, name and subresource; the last three may be empty."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise statuses.no_such_path()
    group, version = found["group"] or "", found["version"]
    for kind in KINDS:
        if (kind.group, kind.version, kind.plural) == (group, version, found["plural"]):
            if found["sub"] == "log" and kind is not POD:
                break
            if found["name"] and kind.namespaced and not found["namespace"]:
                break
            return kind, found["namespace"] or "", found["name"] or "", found["sub"] or ""
    raise statuses.no_such_path()


def _verb(method: str, name: str, query: dict[str, str]) -> str:
    if method != "GET":
        return _VERBS[method]
    if query.get("watch") in ("true", "1"):
        return "watch"
    return "get" if name else "list"


def _delete_options(body: Object, query: dict[str, str]) -> Object:
    """From the body, or from the query as older clients say it."""
    if body and body.get("kind") != "DeleteOptions":
        raise statuses.bad_request("the body of a DELETE has to be DeleteOptions")
    seconds = query.get("gracePeriodSeconds")
    given = {"gracePeriodSeconds": int(seconds)} if seconds else {}
    if policy := query.get("propagationPolicy"):
        given["propagationPolicy"] = policy
    return given | body


def _lines(changes: Iterable[Change], namespace: str, query: dict[str, str]) -> Iterable[Object]:
    for change in changes:
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        is_there = not namespace or change.item["metadata"].get("namespace") == namespace
        if is_there and matches(change.item, labels, fields):
            yield {"type": change.type, "object": change.item}
