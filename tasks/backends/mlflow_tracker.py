"""MLflow as a view of the run directory: written so that saying a thing twice says it once."""

from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Literal

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException, RestException
from requests import RequestException

from tasks.backends.protocols import ATTEMPT, Point

EXPERIMENT = "ariadne"
_RUN_TAG = "ariadne.run_id"
_DIGEST_TAG = "adapter_digest"
_METRICS_PER_CALL = 900
"""MLflow takes at most 1000."""


def _reaching[**P, R](call: Callable[P, R]) -> Callable[P, R]:
    """MLflow tells a server that is away by the words of a general error."""

    @wraps(call)
    def reach(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except RequestException as error:
            raise ConnectionError(f"MLflow is away: {error}") from error
        except MlflowException as error:
            if isinstance(error, RestException) or not error.message.startswith("API request to"):
                raise
            raise ConnectionError(f"MLflow is away: {error.message}") from error

    return reach


class MlflowTracker:
    """Implements `Tracker`; the server's address comes from MLFLOW_TRACKING_URI."""

    @cached_property
    def _client(self) -> MlflowClient:
        """Made when it is needed: without an address it would make a database where we stand."""
        return MlflowClient()

    @_reaching
    def open(self, run_id: str, parameters: dict[str, str], tags: dict[str, str]) -> str:
        run = self._find(run_id) or self._client.create_run(
            self._experiment(), run_name=run_id, tags={_RUN_TAG: run_id}
        )
        known = run.data.params
        new = [Param(key, value) for key, value in parameters.items() if key not in known]
        labels = [RunTag(key, value) for key, value in tags.items()]
        self._client.log_batch(run.info.run_id, params=new, tags=labels)
        self._client.update_run(run.info.run_id, status="RUNNING")
        return self._page(run)

    @_reaching
    def log(self, run_id: str, points: Sequence[Point]) -> None:
        """The time of a point is its own, so the same point meets its own key and is dropped."""
        metrics = [
            Metric(key.replace("@", "_at_"), value, point.time_ms, point.step)
            for point in points
            for key, value in point.values.items()
        ]
        tracked = self._get(run_id).info.run_id
        for first in range(0, len(metrics), _METRICS_PER_CALL):
            self._client.log_batch(tracked, metrics=metrics[first : first + _METRICS_PER_CALL])

    @_reaching
    def last_step(self, run_id: str) -> int:
        history = self._client.get_metric_history(self._get(run_id).info.run_id, ATTEMPT)
        return max((point.step for point in history), default=0)

    @_reaching
    def log_file(self, run_id: str, path: Path, folder: str) -> str:
        run = self._get(run_id)
        self._client.log_artifact(run.info.run_id, str(path), folder)
        return f"{self._page(run)}/artifacts/{folder}/{path.name}"

    @_reaching
    def close(self, run_id: str, status: Literal["FINISHED", "FAILED", "KILLED"]) -> None:
        self._client.set_terminated(self._get(run_id).info.run_id, status)

    @_reaching
    def is_running(self, run_id: str) -> bool:
        run = self._find(run_id)
        return run is not None and run.info.status == "RUNNING"

    @_reaching
    def register(
        self, run_id: str, name: str, digest: str, folder: Path, tags: dict[str, str]
    ) -> str:
        self._ensure_model(name)
        if self._version(name, digest) is None:
            tracked = self._get(run_id).info
            # Named by content: a step that is trained anew leaves older versions alone.
            place = f"adapters/{digest[:16]}"
            self._client.log_artifacts(tracked.run_id, str(folder), place)
            self._client.create_model_version(
                name,
                source=f"{tracked.artifact_uri}/{place}",
                run_id=tracked.run_id,
                tags={_DIGEST_TAG: digest},
            )
        version = self._only_version(name, digest)
        for key, value in tags.items():
            self._client.set_model_version_tag(name, version, key, value)
        return version

    @_reaching
    def point_aliases(self, name: str, champion: str, previous: str | None) -> None:
        version = self._version(name, champion)
        if version is None:
            raise LookupError(f"no version of {name} has the adapter {champion}: register it first")
        before = self._version(name, previous) if previous else None
        if before is None:
            self._client.delete_registered_model_alias(name, "previous")
        else:
            self._client.set_registered_model_alias(name, "previous", before)
        self._client.set_registered_model_alias(name, "champion", version)

    def _ensure_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _versions(self, name: str, digest: str) -> list[str]:
        """Oldest first."""
        query = f"name = '{name}' and tags.{_DIGEST_TAG} = '{digest}'"
        found = self._client.search_model_versions(query)
        return sorted((str(version.version) for version in found), key=int)

    def _version(self, name: str, digest: str) -> str | None:
        return next(iter(self._versions(name, digest)), None)

    def _only_version(self, name: str, digest: str) -> str:
        """The oldest version; MLflow has no "create if absent", so of two flows that create one
        at the same time, whoever sees the other's drops the younger."""
        oldest, *younger = self._versions(name, digest)
        for version in younger:
            self._client.delete_model_version(name, version)
        return oldest

    def _page(self, run: Run) -> str:
        place = f"experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
        return f"{self._client.tracking_uri}/#/{place}"

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        return found.experiment_id if found else self._client.create_experiment(EXPERIMENT)

    def _find(self, run_id: str) -> Run | None:
        found = self._client.search_runs(
            [self._experiment()], f"tags.`{_RUN_TAG}` = '{run_id}'", ViewType.ACTIVE_ONLY
        )
        return found[0] if found else None

    def _get(self, run_id: str) -> Run:
        run = self._find(run_id)
        if run is None:
            raise LookupError(
                f"MLflow has no run for {run_id}: it was deleted; start the flow again"
            )
        return run
