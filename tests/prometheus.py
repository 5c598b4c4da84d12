"""A real Prometheus, for the length of a `with`, and questions to it."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tasks import ports
from tests.waiting import wait_until


@contextmanager
def running_prometheus(folder: Path, config: str) -> Iterator[str]:
    """Started on an empty database with this configuration; its address once it is ready."""
    binary = shutil.which("prometheus")
    assert binary, "the tests need Prometheus: on Debian, apt-get install prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    check = ["promtool", "check", "config", str(folder / "prometheus.yml")]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    address = f"127.0.0.1:{ports.any_free()}"
    command = [
        binary,
        *(f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: _is_ready(f"http://{address}"))
        yield f"http://{address}"
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).is_success
    except httpx.TransportError:
        return False


def query(url: str, expression: str) -> list[dict[str, Any]]:
    """The series of an instant query now; fails where Prometheus refuses the expression."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=30)
    assert answer.is_success, f"{expression}: {answer.text}"
    return answer.json()["data"]["result"]


def alerts(url: str) -> set[str]:
    """Names of the alerts that fire now."""
    found = httpx.get(f"{url}/api/v1/alerts", timeout=10).raise_for_status().json()["data"]
    return {a["labels"]["alertname"] for a in found["alerts"] if a["state"] == "firing"}
