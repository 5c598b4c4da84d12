"""A Ray dashboard that says what it is told: how many nodes are alive, and which jobs there are.

    python -m tests.aws.dashboard NODES

prints its port and serves until it is ended.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Handler(BaseHTTPRequestHandler):
    """What is asked is answered by the dashboard."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.send(self.server.dashboard.answer(self.path))  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        submission_id = self.path.removeprefix("/api/jobs/").removesuffix("/stop")
        self.server.dashboard.stop(submission_id)  # type: ignore[attr-defined]
        self.send({"stopped": True})

    def send(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Dashboard:
    """Serves on 127.0.0.1; jobs end when they are asked to, but for stubborn ones."""

    handler: type[Handler] = Handler

    def __init__(self, num_nodes: int = 0) -> None:
        self.num_nodes = num_nodes
        self.jobs: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self._http.daemon_threads = True
        self._http.dashboard = self  # type: ignore[attr-defined]

    @property
    def port(self) -> int:
        return self._http.server_port

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str) -> Any:
        if path.startswith("/api/v0/nodes"):
            nodes = [{"state": "ALIVE"}] * self.num_nodes + [{"state": "DEAD"}]
            return {"data": {"result": {"result": nodes}}}
        if path == "/api/jobs/":
            return self.jobs
        return None

    def stop(self, submission_id: str) -> None:
        self.stopped.append(submission_id)
        for job in self.jobs:
            if job["submission_id"] == submission_id:
                job["status"] = "STOPPED"


if __name__ == "__main__":
    with Dashboard(int(sys.argv[1])) as serving:
        print(serving.port, flush=True)  # noqa: T201
        threading.Event().wait()
