"""A real Prefect server with its pages, as `make up` starts it, for the length of a `with`."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_LOGGING_TO_API_BATCH_INTERVAL,
    temporary_settings,
)

from tasks import ports
from tests.waiting import wait_until

_START_TIMEOUT_S = 180
"""Its first start makes a database: 10 s on an idle machine, a minute on a busy one."""


@dataclass(frozen=True)
class PrefectServer:
    """A server that answers; flows of this process use it."""

    url: str

    @property
    def api(self) -> str:
        return f"{self.url}/api"


@contextmanager
def prefect_server(home: Path) -> Generator[PrefectServer]:
    """Start it on a free port with a database of its own in `home`."""
    port = ports.any_free()
    server = PrefectServer(f"http://127.0.0.1:{port}")
    address = ("--host", "127.0.0.1", "--port", str(port))
    environment = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_API_URL": server.api,
        "DO_NOT_TRACK": "1",
    }
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*(sys.executable, "-m", "prefect", "server", "start"), *address],
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: _is_ready(server, process), timeout_s=_START_TIMEOUT_S)
        settings = {
            PREFECT_API_URL: server.api,
            PREFECT_HOME: home,
            PREFECT_LOGGING_TO_API_BATCH_INTERVAL: 0.5,
        }
        with temporary_settings(settings):
            yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=5)


def _is_ready(server: PrefectServer, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the Prefect server ended"
    try:
        return httpx.get(f"{server.api}/ready", timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False
