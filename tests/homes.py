"""A home with real services: commands on it, and the processes that belong to it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import State

from tasks.home import Home
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]


def ariadne(
    home: Home, *arguments: str, timeout_s: float = 900
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows", *arguments],
        cwd=ROOT,
        env={**os.environ, "ARIADNE_HOME": str(home.root), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(home: Home, log: Path, *arguments: str, root: Path = ROOT) -> subprocess.Popen[bytes]:
    """`flows run` of the project at `root` in the background."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "flows", "run", *arguments],
            cwd=root,
            env={**os.environ, "ARIADNE_HOME": str(home.root), "COLUMNS": "200"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def ours(home: Home) -> Iterator[tuple[psutil.Process, list[str]]]:
    """The processes of this home with their command lines."""
    for process in psutil.process_iter(["cmdline", "environ"]):
        if (process.info["environ"] or {}).get("ARIADNE_HOME") == str(home.root):
            yield process, process.info["cmdline"] or []


def find(home: Home, word: str) -> list[psutil.Process]:
    """The Python processes of this home with that word in their command line."""
    return [
        process
        for process, words in ours(home)
        if word in words and "python" in words[0] and "leash" not in " ".join(words)
    ]


def flow_processes(home: Home) -> list[psutil.Process]:
    """What runs flows of this home, by the variable that tells a process which run it is."""
    return [p for p, _ in ours(home) if "PREFECT__FLOW_RUN_ID" in p.info["environ"]]


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each; one that has died with another is what was wanted."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill(home: Home, word: str) -> int:
    """SIGKILL to the first such process; returns its pid."""
    process = find(home, word)[0]
    process.send_signal(signal.SIGKILL)
    return process.pid


def run_deployment(home: Home, deployment: str, parameters: dict[str, Any]) -> str:
    """Start a deployment as the UI does and wait for its end; the name of its last state.

    Prefect's own client asks, since the server answers 503 when its database is busy for a moment.
    """
    api = json.loads(home.services_file.read_text())["prefect_api_url"]
    with SyncPrefectClient(api) as prefect:
        found = prefect.read_deployment_by_name(deployment)
        created = prefect.create_flow_run_from_deployment(
            found.id, parameters=parameters, idempotency_key=str(uuid4())
        )

        def state() -> State:
            now = prefect.read_flow_run(created.id).state
            assert now is not None
            return now

        wait_until(lambda: state().is_final(), timeout_s=600)
        return state().name or ""
