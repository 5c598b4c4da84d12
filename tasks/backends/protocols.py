"""What a stage may ask of the world outside, as small Protocols; a vendor's file implements one."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from configs.schema import ClusterConfig, MazeConfig
from configs.serving import Probe, ServedAdapter


class Fact(BaseModel):
    """A frozen record that crosses a Protocol."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProcessSpec(Fact):
    """A long-lived process to keep on this machine."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    command: tuple[str, ...] = Field(min_length=1)
    environment: dict[str, str]
    """Variables on top of the inherited ones. They are written to a file: never a secret."""
    directory: Path
    log: Path
    """Output and errors, rotated."""
    restart: bool
    """Start it again whenever it ends without having been stopped."""
    stop_timeout_s: int = Field(10, gt=0)
    """From SIGTERM to SIGKILL, for the whole process group."""


class ProcessState(Fact):
    """What is known of one process now."""

    name: str
    running: bool
    pid: int | None
    description: str


class Processes(Protocol):
    """Processes that outlive whoever asked for them. Safe to call from several processes."""

    def ensure(self, spec: ProcessSpec) -> ProcessState:
        """Adopt what runs by this very spec; replace what runs by another under its name.

        Returns once the process is spawned, not once it is healthy.
        """
        ...

    def state(self, name: str) -> ProcessState | None:
        """None when no process of this name is kept."""
        ...

    def states(self) -> list[ProcessState]: ...

    def stop(self, name: str) -> None:
        """End the process and all it started. Its spec stays, and `ensure` starts it again."""
        ...

    def remove(self, name: str) -> None:
        """Stop the process and forget its spec; nothing where there is none."""
        ...


class Image(Fact):
    """Code and environment to run jobs with."""

    digest: str
    python: str
    """Interpreter inside the image."""
    app: str
    """Folder inside the image that holds `configs` and `containers`."""
    reference: str = ""
    """Where a registry has it, with its digest; empty without a registry."""


class ImageBuilder(Protocol):
    def digest(self) -> str:
        """What the image would be, from its inputs alone."""
        ...

    def find(self, digest: str) -> Image | None:
        """The finished image, or None."""
        ...

    def build(self, digest: str, *, force: bool) -> Image: ...


class Cluster(Fact):
    """A Ray cluster that answers."""

    name: str
    dashboard_url: str
    """Where jobs are submitted."""
    num_nodes: int


class Planned(Fact):
    """One thing that would be done, and what would be sent for it."""

    call: str
    """A line for people: the call, or what is started."""
    manifest: dict[str, Any] | None = None
    """The object as it would be sent, where one is."""


class ClusterBackend(Protocol):
    def find(self, name: str, config: ClusterConfig, image: Image) -> Cluster | None:
        """The cluster of that name if it runs this image, complete and healthy."""
        ...

    def start(self, name: str, config: ClusterConfig, image: Image) -> Cluster: ...

    def plan(self, name: str, config: ClusterConfig, image: Image) -> tuple[Planned, ...]:
        """What `start` would do by what is there now, in order. Only reads."""
        ...

    def stop(self, name: str) -> None: ...

    def diagnose(self, name: str) -> str:
        """What every process of the cluster does right now, for people."""
        ...


class Machine(Fact):
    """A machine that Ray nodes run on."""

    name: str
    """As repairs take it and people look it up."""
    instance_type: str
    state: Literal["ready", "coming", "ill", "closed"]
    """`coming`: on its way, under a check or being repaired. `ill`: to be repaired. `closed`: kept
    from use by a person, and left alone."""
    recovers: bool
    """Somebody else repairs it if need be, without a request."""
    words: str
    """What is the matter, for people."""
    num_gpus: int = 0
    """0 where it has none, or nobody has said yet."""


class Machines(Fact):
    """The machines under a cluster."""

    all: tuple[Machine, ...]
    news: str
    """The pool's newest trouble beyond single machines, for people; mostly empty."""


Request = Literal["reboot", "replace"]


class MachinePool(Protocol):
    """Where the machines come from."""

    def look(self) -> Machines:
        """
        Raises:
            ConnectionError: there is no answer now; another time there may be one.
            ValueError: there never will be one with this profile or these rights; says why.
        """
        ...

    def request(self, what: Request, machine: Machine) -> str:
        """Ask for a repair; why it was refused, or nothing where it was taken up."""
        ...


_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def check_key(key: str) -> None:
    """Refuse a name that leads elsewhere on a file system, or is none in S3.

    Raises:
        ValueError: it is more than parts of letters, digits, `.`, `_` and `-`, or too long.
    """
    if not _KEY.fullmatch(key) or len(key) > 512:
        raise ValueError(f"{key!r} is no name of an object: use letters, digits and ._-/")


class ObjectStore(Protocol):
    """Named objects on shared storage. Names are parts separated by `/`, see `check_key`.

    Raises:
        RuntimeError: every call, where the store is away or refuses; one line.
    """

    def create(self, key: str, data: bytes) -> bool:
        """Write what is not there yet, at once; False where it is there. Of several callers one
        gets True."""
        ...

    def read(self, key: str) -> bytes | None:
        """None where there is none."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """All that begin so, in order."""
        ...

    def upload(self, key: str, path: Path) -> None:
        """Write or replace it by a file of any size; it is seen whole or not at all."""
        ...

    def download(self, key: str, path: Path) -> None:
        """Raises LookupError where there is none."""
        ...

    def delete(self, key: str) -> None:
        """Nothing where there is none."""
        ...


JobStatus = Literal["pending", "running", "succeeded", "failed", "stopped", "unknown"]


class Jobs(Protocol):
    """Jobs of a cluster, by submission id."""

    def submit_or_adopt(
        self, submission_id: str, command: Sequence[str], environment: dict[str, str]
    ) -> None:
        """Start the job, or do nothing where one with this id is known already."""
        ...

    def status(self, submission_id: str) -> JobStatus:
        """`unknown`: the cluster has no such job, or cannot be asked."""
        ...

    def stop(self, submission_id: str) -> None: ...

    def delete(self, submission_id: str) -> None:
        """Forget an ended job, so that its id can be used again."""
        ...

    def logs(self, submission_id: str) -> str:
        """What the job has printed, then how it ended; empty where it cannot be had."""
        ...


class Account(Protocol):
    """The cloud account that pays for a run. Only asked, never changed."""

    def identity(self) -> str:
        """Who we are there.

        Raises:
            RuntimeError: the credentials are missing or refused; one line with the next move.
        """
        ...

    def quota(self, instance_type: str) -> float | None:
        """How many machines of this kind a cluster may have; None where it cannot be told.

        Raises:
            RuntimeError: the account does not say; one line with the next move.
        """
        ...


class Endpoint(Fact):
    """A model server that answers."""

    url: str
    """Of the OpenAI API, up to and with /v1."""
    models: dict[str, str]
    """Model name to adapter digest; the base has the base's digest."""


class HostedModel(Fact):
    """What shall be served."""

    base: Path
    base_digest: str
    champion: ServedAdapter
    previous: ServedAdapter | None
    """What served before, of the same base: kept at hand to go back to."""
    alias: str
    """The model name that users ask for."""
    probes: tuple[Probe, ...]
    """What the champion said when it was evaluated: every replica has to say it again."""
    num_replicas: int
    port: int
    dtype: str
    device: Literal["cpu", "cuda"]
    max_model_len: int
    mazes: MazeConfig
    max_action_tokens: int
    lora_rank: int
    image: Image
    timeout_s: int


class ModelServer(Protocol):
    def find(self, model: HostedModel) -> Endpoint | None:
        """The running endpoint if it serves exactly this, or None."""
        ...

    def serve(self, model: HostedModel) -> Endpoint:
        """Have it served and proven; what served before goes on until then, or on failure."""
        ...

    def plan(self, model: HostedModel) -> tuple[Planned, ...]:
        """What `serve` would create where nothing is there yet."""
        ...

    def settle(self, champion_digest: str) -> bool:
        """Leave this champion serving, and nothing beside it.

        Returns:
            Whether it had to be put back, since the last `serve` was to replace it and was never
            seen through.
        """
        ...


ATTEMPT = "attempt"
"""A value of every training step: which attempt trained it."""


class Point(Fact):
    """Values of one training step."""

    step: int
    time_ms: int
    values: dict[str, float]


class Tracker(Protocol):
    """A view of runs for people; every call may be repeated and says its thing once.

    Raises:
        ConnectionError: every call, while the tracker cannot be reached.
    """

    def open(self, run_id: str, parameters: dict[str, str], tags: dict[str, str]) -> str:
        """Find or create the run; the path of its page below the tracker's address."""
        ...

    def log(self, run_id: str, points: Sequence[Point]) -> None: ...

    def last_step(self, run_id: str) -> int:
        """The newest training step it has a point of; 0 where it has none."""
        ...

    def log_file(self, run_id: str, path: Path, folder: str) -> str:
        """Keep a copy of the file, in place of an earlier one; the address of its page."""
        ...

    def close(self, run_id: str, status: Literal["FINISHED", "FAILED", "KILLED"]) -> None: ...

    def is_running(self, run_id: str) -> bool:
        """Whether it was opened and never closed since; False for one it does not know."""
        ...

    def register(
        self, run_id: str, name: str, digest: str, folder: Path, tags: dict[str, str]
    ) -> str:
        """Publish the adapter once per digest, with the tags as they are now; its version."""
        ...

    def point_aliases(self, name: str, champion: str, previous: str | None) -> None:
        """Give the versions of these digests the aliases `previous` and, last, `champion`.

        Where nothing was published under the digest of `previous`, nothing has that alias.

        Raises:
            LookupError: no version has the digest of `champion`.
        """
        ...
