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
from prefect.states import Cancelling

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


def address(home: Home, service: str) -> str:
    """Where a service of this home answers, by its name in the services file."""
    return json.loads(home.services_file.read_text())[service]


def prefect_of(home: Home) -> SyncPrefectClient:
    """Prefect's own client: it asks again when the server's database is busy and answers 503."""
    return SyncPrefectClient(address(home, "prefect_api_url"))


def cancel_running(home: Home) -> None:
    """Cancel the one flow run that runs, as the UI does."""
    with prefect_of(home) as prefect:
        (run,) = [run for run in prefect.read_flow_runs() if run.state and run.state.is_running()]
        prefect.set_flow_run_state(run.id, Cancelling())


def run_deployment(home: Home, deployment: str, parameters: dict[str, Any]) -> str:
    """Start a deployment as the UI does and wait for its end; the name of its last state."""
    with prefect_of(home) as prefect:
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
