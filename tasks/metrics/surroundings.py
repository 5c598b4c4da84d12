"""Samples of what is around the runs: the endpoint, Prefect's queue, the disk.

The endpoint and Prefect are asked on each scrape and may be away; that is a sample too.
"""

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import httpx

from configs.serving import DoorStatus, Serving
from tasks.home import Home
from tasks.hosted import Hosted, history
from tasks.metrics import catalogue as m
from tasks.metrics.catalogue import Sample
from tasks.records import HostRecord, newest
from tasks.run_dir import open_run

_TIMEOUT_S = 2.0
_FLOW_STATES = {"waiting": ("SCHEDULED", "PENDING"), "running": ("RUNNING", "CANCELLING")}


class ModelServerTarget(NamedTuple):
    """Where Prometheus finds the metrics of one server."""

    address: str
    """host:port."""
    path: str
    name: str


class Surroundings:
    """Asks with connections that stay open; a disk or a server that is away ends no scrape."""

    def __init__(self, home: Home) -> None:
        self._home = home
        # No proxy between this machine and itself; to load certificates is slow.
        self._client = httpx.Client(trust_env=False, verify=False, timeout=_TIMEOUT_S)

    def samples(self) -> Iterator[Sample]:
        disk = shutil.disk_usage(self._home.runs)
        yield Sample(m.DISK_FREE, (), disk.free)
        yield Sample(m.DISK_SIZE, (), disk.total)
        yield from self._flow_runs()
        served = history(self._home)
        if served:
            yield from self._endpoint(served[-1])

    def _flow_runs(self) -> Iterator[Sample]:
        api = os.environ.get("PREFECT_API_URL")
        if not api:
            return
        try:
            counts = {state: self._count(api, types) for state, types in _FLOW_STATES.items()}
        except (httpx.HTTPError, ValueError):
            yield Sample(m.SOURCE_UP, ("prefect",), 0)
            return
        yield Sample(m.SOURCE_UP, ("prefect",), 1)
        for state, number in counts.items():
            yield Sample(m.FLOW_RUNS, (state,), number)

    def _count(self, api: str, types: tuple[str, ...]) -> int:
        """Runs in these states that are due: a schedule's runs of next week wait for nothing."""
        flow_runs = {
            "state": {"type": {"any_": types}},
            "expected_start_time": {"before_": datetime.now(UTC).isoformat()},
        }
        answer = self._client.post(f"{api}/flow_runs/count", json={"flow_runs": flow_runs})
        return int(answer.raise_for_status().json())

    def _endpoint(self, champion: Hosted) -> Iterator[Sample]:
        digest = champion.adapter_digest
        labels = (champion.run_id, str(champion.step), digest[:12])
        yield Sample(m.CHAMPION, labels, 1)
        status = self._door(champion)
        yield Sample(m.SOURCE_UP, ("door",), status is not None)
        yield Sample(m.ENDPOINT_UP, (), status is not None)
        if status is None:
            yield Sample(m.ENDPOINT_SERVES, (), 0)
            return
        proven = [replica.proven == status.serving for replica in status.replicas]
        serves = status.champion_digest == digest and any(proven)
        yield Sample(m.ENDPOINT_SERVES, (), serves)
        yield Sample(m.ENDPOINT_BEHIND, (), status.wanted - status.serving)
        for number, replica in enumerate(status.replicas, start=1):
            yield Sample(m.REPLICA_PROVEN, (str(number),), proven[number - 1])
            yield Sample(m.REPLICA_BUSY, (str(number),), replica.in_flight)

    def _door(self, champion: Hosted) -> DoorStatus | None:
        """What the door says of itself; None where it does not answer."""
        try:
            url = door_url(self._home, champion)
            if url is None:
                return None
            answer = self._client.get(f"{url}/status", headers=_authorisation())
            return DoorStatus.model_validate_json(answer.raise_for_status().text)
        except (httpx.HTTPError, ValueError):
            return None


def door_url(home: Home, champion: Hosted) -> str | None:
    """Where the door was when the champion was hosted."""
    record = newest(HostRecord, open_run(home.runs, champion.run_id).records)
    return record.endpoint.url.removesuffix("/v1") if record else None


def model_servers(home: Home) -> list[ModelServerTarget]:
    """The servers behind the door, which passes on the metrics of each."""
    try:
        url = door_url(home, history(home)[-1])
        wish = Serving.read(home.hosting / "serving.json")
    except (FileNotFoundError, IndexError, ValueError):
        return []
    address = url.removeprefix("http://") if url else ""
    # Those of Ray Serve are told with Ray's own.
    sockets = [each for each in wish.replicas if isinstance(each, Path)] if address else []
    return [
        ModelServerTarget(address, f"/metrics/{name}", name)
        for name in (socket.stem for socket in sockets)
    ]


def _authorisation() -> dict[str, str]:
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
