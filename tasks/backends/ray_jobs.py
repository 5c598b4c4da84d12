"""Jobs of a Ray cluster through its HTTP API, by fixed submission ids."""

import shlex
import time
from collections.abc import Sequence

import httpx
from tenacity import (
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_fixed,
)

from tasks.backends.protocols import JobStatus

_TIMEOUT_S = 30
_SUBMIT_TIMEOUT_S = 90
_STATUS: dict[str, JobStatus] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
_OURS = {"submitted_by": "ariadne"}
"""On a cluster that others use too, our jobs are told from theirs by it."""
_STOP_TIMEOUT_S = 60
_STOP_POLL_S = 1.0


class _NotTaken(RuntimeError):
    """Ray did not take a job."""


class RayJobs:
    """Implements `Jobs` on the cluster whose dashboard is at `dashboard_url`."""

    def __init__(self, dashboard_url: str, session: httpx.Auth | None = None) -> None:
        self._url = f"{dashboard_url}/api/jobs"
        self._session = session

    def submit_or_adopt(
        self, submission_id: str, command: Sequence[str], environment: dict[str, str]
    ) -> None:
        if self.status(submission_id) != "unknown":
            return
        request = {
            "entrypoint": shlex.join(command),
            "submission_id": submission_id,
            "runtime_env": {"env_vars": environment},
            "metadata": _OURS,
        }
        self._submit(submission_id, request)

    @retry(
        retry=retry_if_exception_type((_NotTaken, httpx.HTTPError)),
        wait=wait_fixed(1),
        stop=stop_after_delay(_SUBMIT_TIMEOUT_S),
        reraise=True,
    )
    def _submit(self, submission_id: str, request: dict[str, object]) -> None:
        """A young cluster has no agent to run jobs yet, so refusals are final only after a while.

        Two flows may submit at the same moment; the second finds the first one's job.
        """
        answer = httpx.post(f"{self._url}/", json=request, timeout=_TIMEOUT_S, auth=self._session)
        if not answer.is_success and self.status(submission_id) == "unknown":
            raise _NotTaken(f"Ray refused job {submission_id}: {answer.text[:500]}")

    def status(self, submission_id: str) -> JobStatus:
        try:
            answer = _ask(f"{self._url}/{submission_id}", self._session)
        except httpx.HTTPError:
            return "unknown"
        return _STATUS.get(answer.json()["status"], "unknown") if answer.is_success else "unknown"

    def stop(self, submission_id: str) -> None:
        url = f"{self._url}/{submission_id}/stop"
        httpx.post(url, timeout=_TIMEOUT_S, auth=self._session)

    def delete(self, submission_id: str) -> None:
        url = f"{self._url}/{submission_id}"
        httpx.delete(url, timeout=_TIMEOUT_S, auth=self._session).raise_for_status()

    def logs(self, submission_id: str) -> str:
        try:
            url = f"{self._url}/{submission_id}"
            answer = httpx.get(f"{url}/logs", timeout=_TIMEOUT_S, auth=self._session)
            about = httpx.get(url, timeout=_TIMEOUT_S, auth=self._session)
        except httpx.HTTPError:
            return ""
        if not (answer.is_success and about.is_success):
            return ""
        # Ray's word on the end repeats the last lines; the first says how the program ended.
        ending = str(about.json().get("message") or "").split("\n")[0]
        ending = ending.partition(", last available logs")[0]
        return f"{answer.json()['logs']}\n{ending}\n"

    def stop_ours(self) -> None:
        """End every job that Ariadne has submitted to this cluster, and no other.

        Raises:
            RuntimeError: one goes on.
        """
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while ours := self._running():
            if time.monotonic() > deadline:
                raise RuntimeError(f"Ray does not end its jobs {', '.join(ours)}: stop them there")
            for submission_id in ours:
                self.stop(submission_id)
            time.sleep(_STOP_POLL_S)

    def _running(self) -> list[str]:
        jobs = _ask(f"{self._url}/", self._session).raise_for_status().json()
        return [
            job["submission_id"]
            for job in jobs
            if job["status"] in ("PENDING", "RUNNING")
            and (job.get("metadata") or {}).items() >= _OURS.items()
        ]


@retry(
    retry=retry_if_exception_type(httpx.HTTPError),
    wait=wait_fixed(2),
    stop=stop_after_attempt(3),
    reraise=True,
)
def _ask(url: str, session: httpx.Auth | None) -> httpx.Response:
    """A question whose wrong answer would cost a second trainer, so it is asked three times."""
    return httpx.get(url, timeout=_TIMEOUT_S, auth=session)
