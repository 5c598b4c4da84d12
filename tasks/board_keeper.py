"""Keeps the flow run's page up to date, beside the work and never in its way.

A thread looks at the run's files and changes the artifacts that have changed: every fifteen
seconds at most, and once when the work has ended. A Prefect server that is away, slow or full
holds nothing up but this thread; the page catches up when it is back.
"""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from tasks.board import Piece, Places, pieces_of
from tasks.context import Context
from tasks.progress import Watch

_EVERY_S = 15.0
_REQUEST_TIMEOUT_S = 10.0
_LAST_TIMEOUT_S = 20.0
"""For the end of a round under way, and one more."""


@contextmanager
def live_page(context: Context, tracked: str) -> Generator[None]:
    """Show the run on the flow run's page while the work goes on, and how it ended."""
    keeper = _Keeper(context, tracked)
    # With the settings of this flow, which threads do not have of themselves.
    ours = copy_context()
    thread = threading.Thread(target=lambda: ours.run(keeper.keep), name="board", daemon=True)
    thread.start()
    try:
        yield
    finally:
        keeper.stop.set()
        thread.join(_LAST_TIMEOUT_S)


class _Keeper:
    """The thread's work."""

    def __init__(self, context: Context, tracked: str) -> None:
        self.stop = threading.Event()
        self._watch = Watch(context.run)
        self._places = Places(tracked, os.environ.get("GRAFANA_URL", ""))
        self._flow_run_id = UUID(str(flow_run.id))
        self._log = get_run_logger()
        self._ids: dict[str, UUID] | None = None
        """Of the artifacts that are up; None before the server was asked."""
        self._up: dict[str, Piece] = {}
        self._is_away = False

    def keep(self) -> None:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            while not self.stop.wait(0 if not self._up and not self._is_away else _EVERY_S):
                self._round()
            self._round(is_over=True)

    def _round(self, *, is_over: bool = False) -> None:
        """Put up what has changed; what fails waits for the next round."""
        try:
            progress = self._watch.look()
            if is_over:  # this process lives on, the work does not
                progress = replace(progress, at_work=False)
            pieces = pieces_of(progress, self._places)
            changed = [piece for piece in pieces if self._up.get(piece.key) != piece]
            if changed:
                settings = {"timeout": _REQUEST_TIMEOUT_S}
                with get_client(sync_client=True, httpx_settings=settings) as client:
                    for piece in changed:
                        self._put_up(client, piece)
            self._is_away = False
        except (httpx.HTTPError, PrefectException, OSError, ValueError, RuntimeError) as error:
            if not self._is_away:
                self._log.warning("page: the run is not shown for now: %s", error)
            self._is_away = True

    def _put_up(self, client: SyncPrefectClient, piece: Piece) -> None:
        if self._ids is None:
            self._ids = self._find(client)
        if piece.key in self._ids:
            # Not by the client's own method, which would keep each change as an event, too.
            update = ArtifactUpdate(data=piece.data, description=piece.description)
            client.request(
                "PATCH",
                "/artifacts/{id}",
                path_params={"id": self._ids[piece.key]},
                json=update.model_dump(mode="json", exclude_unset=True),
            )
        else:
            new = ArtifactCreate(
                key=piece.key,
                type=piece.type,
                data=piece.data,
                description=piece.description,
                flow_run_id=self._flow_run_id,
            )
            self._ids[piece.key] = client.create_artifact(new).id
        self._up[piece.key] = piece

    def _find(self, client: SyncPrefectClient) -> dict[str, UUID]:
        """What an earlier process of this flow run has put up."""
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=[self._flow_run_id]),
                key=ArtifactFilterKey(like_="ariadne-%"),
            )
        )
        return {artifact.key: artifact.id for artifact in found if artifact.key}
