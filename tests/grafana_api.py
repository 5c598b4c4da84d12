"""Grafana's HTTP API as far as dashboards go, as strict as the real one: keys, roles, versions."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EDITOR, VIEWER = "glsa_editor", "glsa_viewer"
_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_BODY_KEYS = {"dashboard", "folderUid", "message", "overwrite"}


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code, self.body = code, {"message": message, **more}


@dataclass
class GrafanaApi:
    """What the workspace holds, and what it was asked."""

    url: str = ""
    folders: dict[str, str] = field(default_factory=dict)
    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """uid to the stored dashboard, with Grafana's id and version."""
    places: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    busy_times: int = 0
    """How many of the next requests are answered with 503."""

    def answer(self, method: str, path: str, token: str, body: Any) -> Any:
        self.asked.append(f"{method} {path}")
        if self.busy_times > 0:
            self.busy_times -= 1
            raise Refused(503, "Service Unavailable")
        if token not in (EDITOR, VIEWER):
            raise Refused(401, "Invalid API key")
        if method == "POST" and token != EDITOR:
            raise Refused(403, "You'll need additional permissions to perform this action.")
        match method, path.strip("/").split("/"):
            case "GET", ["api", "folders", uid]:
                return self.folder(uid)
            case "POST", ["api", "folders"]:
                return self.make_folder(body)
            case "GET", ["api", "dashboards", "uid", uid]:
                return self.dashboard(uid)
            case "POST", ["api", "dashboards", "db"]:
                return self.save(body)
        raise Refused(404, "Not found")

    def folder(self, uid: str) -> Any:
        if uid not in self.folders:
            raise Refused(404, "folder not found", status="not-found")
        return {"uid": uid, "title": self.folders[uid]}

    def make_folder(self, body: Any) -> Any:
        if set(body) != {"uid", "title"} or not _UID.fullmatch(body["uid"]) or not body["title"]:
            raise Refused(400, "bad request data")
        if body["uid"] in self.folders:
            raise Refused(412, "the folder has been changed by someone else")
        if body["title"] in self.folders.values():
            raise Refused(409, "a folder with the same name already exists")
        self.folders[body["uid"]] = body["title"]
        return self.folder(body["uid"])

    def dashboard(self, uid: str) -> Any:
        if uid not in self.dashboards:
            raise Refused(404, "Dashboard not found")
        return {"dashboard": self.dashboards[uid], "meta": {"folderUid": self.places[uid]}}

    def save(self, body: Any) -> Any:
        dashboard = body.get("dashboard")
        if not isinstance(dashboard, dict) or set(body) - _BODY_KEYS:
            raise Refused(400, "bad request data")
        if not dashboard.get("title"):
            raise Refused(400, "Dashboard title cannot be empty", status="empty-name")
        uid = dashboard.get("uid") or ""
        if not _UID.fullmatch(uid):
            raise Refused(400, "uid contains illegal characters or is too long")
        if body.get("folderUid") not in self.folders:
            raise Refused(400, "folder not found")
        if dashboard.get("id") is not None and uid not in self.dashboards:
            raise Refused(404, "Dashboard not found", status="not-found")
        before = self.dashboards.get(uid)
        if before and not body.get("overwrite") and dashboard.get("version") != before["version"]:
            raise Refused(412, "The dashboard has been changed", status="version-mismatch")
        version = before["version"] + 1 if before else 1
        number = before["id"] if before else len(self.dashboards) + 1
        self.dashboards[uid] = {**dashboard, "id": number, "version": version}
        self.places[uid] = body["folderUid"]
        return {"id": number, "uid": uid, "url": f"/d/{uid}/x", "status": "success",
                "version": version, "slug": "x"}  # fmt: skip


@contextmanager
def grafana_api() -> Iterator[GrafanaApi]:
    """The API on 127.0.0.1, empty."""
    api = GrafanaApi()

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            try:
                is_json = self.headers.get("Content-Type") == "application/json"
                if self.command == "POST" and not is_json:
                    raise Refused(422, "unsupported content type")
                body = json.loads(raw) if raw else None
                code, said = 200, api.answer(self.command, self.path, token, body)
            except Refused as refused:
                code, said = refused.code, refused.body
            text = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_one

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.05))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()
