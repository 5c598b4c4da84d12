"""Registering the deployments, starting one through the API, and following its run."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from configs.loader import ROOT
from tasks.report import SUMMARY_KEY

_DEPLOY_TIMEOUT_S = 180
_POLL_S = 1.0
_LOG_PAGE = 200
_STAGE_LINE = re.compile(r"[a-z]+: ")
"""What stages log starts with their name; the rest is Prefect's own book-keeping."""


def register() -> None:
    """Make the server's deployments those of prefect.yaml.

    Raises:
        RuntimeError: Prefect refused, with its last words.
    """
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
    with get_client(sync_client=True) as client:
        while True:
            state = client.read_flow_run(flow_run_id).state
            shown += _show_logs(client, flow_run_id, shown, say)
            if state and state.is_final():
                _show_logs(client, flow_run_id, shown, say)
                if not state.is_completed():
                    say(f"{state.name}: {_first_line(state.message)}")
                return state.name or "unknown"
            time.sleep(_POLL_S)


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


def _show_logs(
    client: SyncPrefectClient, flow_run_id: UUID, shown: int, say: Callable[[str], None]
) -> int:
    """Pass on the log lines after the first `shown`; returns how many."""
    mine = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id]))
    lines = client.read_logs(mine, limit=_LOG_PAGE, offset=shown, sort=LogSort.TIMESTAMP_ASC)
    for line in lines:
        # Errors come with their traceback; the final state says the same in one line.
        if _STAGE_LINE.match(line.message) and line.level < logging.ERROR:
            say(line.message)
    return len(lines)


def _first_line(message: str | None) -> str:
    return (message or "no reason given").split("\n")[0]
