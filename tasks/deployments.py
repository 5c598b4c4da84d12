"""Registering the deployments, starting one through the API, and following its run."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import Log, State
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.workers.process import ProcessWorker

from configs.digests import digest_of, digest_of_files
from configs.loader import ROOT, profile_names
from tasks.report import SUMMARY_KEY
from tasks.services import POOL

_DEPLOY_TIMEOUT_S = 180
_POLL_S = 1.0
_LOG_PAGE = 200
_LOGS_TIMEOUT_S = 10
_CRASHED_TIMEOUT_S = 90
_LAST_LINE = "Finished in state"
_STAGE_LINE = re.compile(r"[a-z]+: ")
"""What stages log starts with their name; the rest is Prefect's own book-keeping."""


def ensure_pool() -> None:
    """Make the work pool that prefect.yaml names, where no worker has made it yet."""
    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=POOL, type=ProcessWorker.type, base_job_template=template)
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(pool)


def register(services: Path) -> None:
    """Make the server's deployments those of prefect.yaml, unless they are already.

    Registering sets every schedule back to what the file says, so a schedule that an operator
    has switched on keeps running only because nothing is registered twice.

    Raises:
        RuntimeError: Prefect refused, with its last words.
    """
    registered = services / "deployments.digest"
    digest = digest_of_files([ROOT / "prefect.yaml", *(ROOT / "flows").glob("*.py")], ROOT)
    digest = digest_of([digest, profile_names()])
    if registered.is_file() and registered.read_text() == digest:
        return
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        [*command, "--prefect-file", str(ROOT / "prefect.yaml")],
        cwd=ROOT,
        env={**os.environ, "ARIADNE_ROOT": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=_DEPLOY_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        words = " ".join((done.stdout + done.stderr).split())[-600:]
        raise RuntimeError(f"the deployments were not registered: {words}")
    registered.write_text(digest)


def start(deployment: str, parameters: dict[str, Any]) -> tuple[UUID, str]:
    """Start a deployment as an operator would; returns the run's id and readable name.

    Raises:
        ValueError: the server refuses the parameters; says which and why.
        RuntimeError: there is no such deployment.
    """
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(deployment)
            run = client.create_flow_run_from_deployment(found.id, parameters=parameters)
        except ObjectNotFound:
            raise RuntimeError(f"no deployment {deployment}: run `make up` first") from None
        except PrefectHTTPStatusError as error:
            detail = error.response.json().get("detail", error.response.text)
            raise ValueError(f"{deployment} was refused: {' '.join(str(detail).split())}") from None
    return run.id, run.name


def follow(flow_run_id: UUID, say: Callable[[str], None]) -> str:
    """Pass on what the run logs until it ends; returns the name of its final state.

    Watching is all this does: interrupted, the run goes on.
    """
    shown = 0
    ended_at: float | None = None
    with get_client(sync_client=True) as client:
        while True:
            state = client.read_flow_run(flow_run_id).state
            lines = _read_logs(client, flow_run_id, shown)
            shown += len(lines)
            _show(lines, say)
            if state is None or not state.is_final():
                ended_at = None
            else:
                ended_at = ended_at or time.monotonic()
                if _is_over(state, lines, time.monotonic() - ended_at):
                    if state.name != "Completed":
                        say(f"{state.name}: {_first_line(state.message)}")
                    return state.name or "unknown"
            time.sleep(_POLL_S)


def _is_over(state: State[Any], lines: list[Log], ended_s: float) -> bool:
    """A run sends its last lines a moment after its last state; a crashed one is scheduled
    again a moment after it."""
    if state.is_crashed():
        return ended_s > _CRASHED_TIMEOUT_S
    return any(line.message.startswith(_LAST_LINE) for line in lines) or ended_s > _LOGS_TIMEOUT_S


def summary(flow_run_id: UUID) -> list[dict[str, str]]:
    """The rows of the run's summary table; empty where it made none."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]),
                key=ArtifactFilterKey(any_=[SUMMARY_KEY]),
            )
        )
    return json.loads(str(found[0].data)) if found else []


def _read_logs(client: SyncPrefectClient, flow_run_id: UUID, shown: int) -> list[Log]:
    """The log lines after the first `shown`."""
    mine = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id]))
    return client.read_logs(mine, limit=_LOG_PAGE, offset=shown, sort=LogSort.TIMESTAMP_ASC)


def _show(lines: list[Log], say: Callable[[str], None]) -> None:
    """Pass on what stages say. Errors come with their traceback; the final state has the line."""
    for line in lines:
        if _STAGE_LINE.match(line.message) and line.level < logging.ERROR:
            say(line.message)


def _first_line(message: str | None) -> str:
    return (message or "no reason given").split("\n")[0]
