"""Jobs of a Ray cluster through its HTTP API, by fixed submission ids."""

import shlex
from collections.abc import Sequence

import httpx

from tasks.backends.protocols import JobStatus

_TIMEOUT_S = 30
_STATUS: dict[str, JobStatus] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}


class RayJobs:
    """Implements `Jobs` on the cluster whose dashboard is at `dashboard_url`."""

    def __init__(self, dashboard_url: str) -> None:
        self._url = f"{dashboard_url}/api/jobs"

    def submit_or_adopt(
        self, submission_id: str, command: Sequence[str], environment: dict[str, str]
    ) -> None:
        if self.status(submission_id) != "unknown":
            return
        answer = httpx.post(
            f"{self._url}/",
            json={
                "entrypoint": shlex.join(command),
                "submission_id": submission_id,
                "runtime_env": {"env_vars": environment},
            },
            timeout=_TIMEOUT_S,
        )
        # Two flows may submit at the same moment; the second finds the first one's job.
        if not answer.is_success and self.status(submission_id) == "unknown":
            raise RuntimeError(f"Ray refused job {submission_id}: {answer.text[:500]}")

    def status(self, submission_id: str) -> JobStatus:
        try:
            answer = httpx.get(f"{self._url}/{submission_id}", timeout=_TIMEOUT_S)
        except httpx.HTTPError:
            return "unknown"
        return _STATUS.get(answer.json()["status"], "unknown") if answer.is_success else "unknown"

    def stop(self, submission_id: str) -> None:
        httpx.post(f"{self._url}/{submission_id}/stop", timeout=_TIMEOUT_S)

    def delete(self, submission_id: str) -> None:
        httpx.delete(f"{self._url}/{submission_id}", timeout=_TIMEOUT_S).raise_for_status()

    def logs(self, submission_id: str) -> str:
        try:
            answer = httpx.get(f"{self._url}/{submission_id}/logs", timeout=_TIMEOUT_S)
        except httpx.HTTPError:
            return ""
        return answer.json()["logs"] if answer.is_success else ""
