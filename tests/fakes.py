"""Stand-ins for what lies outside: Ray's jobs, MLflow, the model server.

They refuse what the real ones refuse. Time is polls: a job goes one step on whenever it is asked
for its status, so nothing here sleeps and every order of events can be written down.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from configs.schema import ClusterConfig
from tasks.backends.protocols import (
    ATTEMPT,
    Cluster,
    Endpoint,
    HostedModel,
    Image,
    JobStatus,
    Planned,
    Point,
)
from tasks.backends.wiring import Backends

IMAGE = Image(digest="1" * 64, python="/image/bin/python", app="/image/app")
CLUSTER = Cluster(name="smoke", dashboard_url="http://ray", num_nodes=2)

Program = Callable[[Path], Iterator[JobStatus]]
"""What a job does: from its job file to its states, one for each time somebody looks."""


@dataclass
class FakeJobs:
    """Implements `Jobs`. Each new job runs the next of `programs`."""

    programs: list[Program] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    output: str = "Traceback\nValueError: the maze has no door\n"
    _running: dict[str, Iterator[JobStatus]] = field(default_factory=dict)
    _status: dict[str, JobStatus] = field(default_factory=dict)

    def submit_or_adopt(
        self, submission_id: str, command: Sequence[str], environment: dict[str, str]
    ) -> None:
        if submission_id in self._status:
            return
        python, dash_m, module, file = command
        assert (python, dash_m) == (IMAGE.python, "-m") and module.startswith("containers.")
        assert environment["PYTHONPATH"] == IMAGE.app
        assert self.programs, f"nobody expected the job {submission_id}"
        self.submitted.append(submission_id)
        self._running[submission_id] = self.programs.pop(0)(Path(file))
        self._status[submission_id] = "pending"

    def status(self, submission_id: str) -> JobStatus:
        if submission_id not in self._status:
            return "unknown"
        last = self._status[submission_id]
        self._status[submission_id] = next(self._running[submission_id], last)
        return self._status[submission_id]

    def stop(self, submission_id: str) -> None:
        self._running[submission_id] = iter(["stopped"])

    def delete(self, submission_id: str) -> None:
        """Ray refuses this for a job that has not ended, and for one it does not know."""
        assert self._status[submission_id] in ("succeeded", "failed", "stopped")
        del self._status[submission_id], self._running[submission_id]

    def forget(self) -> None:
        """A new cluster knows no job of the one before."""
        self._status.clear()
        self._running.clear()

    def logs(self, submission_id: str) -> str:
        return self.output if submission_id in self._status else ""


@dataclass
class FakeClusters:
    """Implements `ClusterBackend`: one cluster, whose jobs are gone when it is stopped."""

    jobs: FakeJobs
    started: int = 0
    _alive: bool = False

    def find(self, name: str, config: ClusterConfig, image: Image) -> Cluster | None:
        return CLUSTER if self._alive else None

    def start(self, name: str, config: ClusterConfig, image: Image) -> Cluster:
        self.started += 1
        self._alive = True
        return CLUSTER

    def plan(self, name: str, config: ClusterConfig, image: Image) -> tuple[Planned, ...]:
        return () if self._alive else (Planned(call=f"start {name}"),)

    def stop(self, name: str) -> None:
        self._alive = False
        self.jobs.forget()

    def diagnose(self, name: str) -> str:
        return "MainThread: waits for a lock\n"


@dataclass
class FakeTracker:
    """Implements `Tracker`; `away` makes every call fail as an unreachable server does.

    As MLflow does, it drops a point that it has already, and keeps a second one of its step.
    """

    away: bool = False
    points: list[Point] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    """Steps, as often as they came."""
    opened: set[str] = field(default_factory=set)
    closed: dict[str, str] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    versions: list[str] = field(default_factory=list)
    """Digests of the registered adapters."""
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """Those of each version, by its adapter's digest."""
    aliases: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    """Folder and name of each file that was logged."""

    def open(self, run_id: str, parameters: dict[str, str], tags: dict[str, str]) -> str:
        self.opened.add(run_id)
        self._reach(run_id)
        self.closed.pop(run_id, None)
        return f"/runs/{run_id}"

    def log(self, run_id: str, points: Sequence[Point]) -> None:
        self._reach(run_id)
        self.told += [point.step for point in points]
        self.points += [point for point in points if point not in self.points]

    def last_step(self, run_id: str) -> int:
        self._reach(run_id)
        return max((point.step for point in self.points if ATTEMPT in point.values), default=0)

    def log_file(self, run_id: str, path: Path, folder: str) -> str:
        self._reach(run_id)
        assert path.is_file()
        self.files.append(f"{folder}/{path.name}")
        self.contents[self.files[-1]] = path.read_bytes()
        return f"/runs/{run_id}/{self.files[-1]}"

    def close(self, run_id: str, status: str) -> None:
        self._reach(run_id)
        self.closed[run_id] = status

    def is_running(self, run_id: str) -> bool:
        if self.away:
            raise ConnectionError("no route to the tracker")
        return run_id in self.opened and run_id not in self.closed

    def register(
        self, run_id: str, name: str, digest: str, folder: Path, tags: dict[str, str]
    ) -> str:
        self._reach(run_id)
        assert (folder / "manifest.json").is_file()
        if digest not in self.versions:
            self.versions.append(digest)
        self.tags.setdefault(digest, {}).update(tags)
        return str(self.versions.index(digest) + 1)

    def point_aliases(self, name: str, champion: str, previous: str | None) -> None:
        if champion not in self.versions:
            raise LookupError(f"no version has the adapter {champion}")
        self.aliases.pop("previous", None)
        if previous in self.versions:
            self.aliases["previous"] = previous
        self.aliases["champion"] = champion

    def _reach(self, run_id: str) -> None:
        if self.away:
            raise ConnectionError("no route to the tracker")
        if run_id not in self.opened:
            raise LookupError(f"no run for {run_id}")


@dataclass
class FakeModels:
    """Implements `ModelServer`: servers behind a door, which read an adapter when it is asked for.

    A wish that fails leaves what was served before.
    """

    started: list[str] = field(default_factory=list)
    """Digests of the champions, as they came."""
    wishes: list[HostedModel] = field(default_factory=list)
    _serves: HostedModel | None = None

    def find(self, model: HostedModel) -> Endpoint | None:
        if self._serves != model:
            return None
        names = {"base": model.base_digest, model.alias: model.champion.digest}
        return Endpoint(url=f"http://127.0.0.1:{model.port}/v1", models=names)

    def serve(self, model: HostedModel) -> Endpoint:
        assert model.previous is None or model.previous.digest != model.champion.digest
        self.wishes.append(model)
        if not (model.champion.folder / "adapter_model.safetensors").is_file():
            raise RuntimeError("the model server does not serve; see its log")
        self.started.append(model.champion.digest)
        self._serves = model
        endpoint = self.find(model)
        assert endpoint is not None
        return endpoint

    def plan(self, model: HostedModel) -> tuple[Planned, ...]:
        return ()

    def settle(self, champion_digest: str) -> bool:
        earlier = [wish for wish in self.wishes if wish.champion.digest == champion_digest]
        if not earlier or self._serves == earlier[-1]:
            return False
        self._serves = earlier[-1]
        return True

    def stop(self) -> None:
        self._serves = None


@dataclass(frozen=True)
class FakeBackends(Backends):
    """All of the above, and no image builder: stages get the image handed in."""

    fake_jobs: FakeJobs

    def jobs(self, cluster: Cluster) -> FakeJobs:
        assert cluster == CLUSTER
        return self.fake_jobs
