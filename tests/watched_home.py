"""A home to be watched: a run as it was recorded from a real one, and a door that says anything.

The steps and attempts in tests/recorded/run are of a smoke run whose second step was followed by
a loss that was no number; here they end a day ago. Ray's and vLLM's metrics were recorded from a
cluster and a server of the smoke profile.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from configs.jobs import MetricsLine
from configs.serving import DoorStatus, ReplicaStatus
from tasks import hosted, records
from tasks.attempts import Attempt, all_attempts
from tasks.backends.protocols import Endpoint
from tasks.home import Home
from tasks.hosted import Hosted
from tasks.metrics.exporter import build
from tasks.records import Comparison, GateRecord, HeldOutScore, HostRecord, Promotion
from tasks.run_dir import Run, create_run
from tests.fakes import IMAGE
from tests.samples import commit_checkpoint, make_config

RECORDED = Path(__file__).parent / "recorded"
ADAPTER = "a" * 64


def new_home(folder: Path) -> Home:
    """A home in which nothing was done yet."""
    home = Home(folder / "home")
    for each in (home.runs, home.hosting):
        each.mkdir(parents=True, exist_ok=True)
    return home


def recorded_run(folder: Path, home: Home, name: str = "recorded", **overrides: Any) -> Run:
    """The recorded run in `home`: four steps, two attempts, judged and hosted."""
    given = {
        "train__steps": 4,
        "train__checkpoint_every_steps": 1,
        "cost__worker_usd_per_hour": 2.0,
        "cost__head_usd_per_hour": 0.5,
        **overrides,
    }
    run = create_run(home.runs, make_config(folder, **given), IMAGE.digest, name)
    shutil.copytree(RECORDED / "run", run.folder, dirs_exist_ok=True)
    _move(run, datetime.now(UTC) - timedelta(days=1))
    for step, attempt in ((3, 2), (4, 2)):
        marker = commit_checkpoint(run.checkpoints, step, attempt) / "COMMITTED.json"
        wall_s = last_line(run).wall_time_ms / 1000
        os.utime(marker, (wall_s, wall_s))
    return run


def _move(run: Run, end: datetime) -> None:
    """Have the last step end then, and all else as long before it as it was."""
    later_ms = int(end.timestamp() * 1000) - last_line(run).wall_time_ms
    lines = [MetricsLine.model_validate_json(text) for text in run.metrics.open()]
    moved = [
        line.model_copy(update={"wall_time_ms": line.wall_time_ms + later_ms}) for line in lines
    ]
    run.metrics.write_text("".join(line.model_dump_json() + "\n" for line in moved))
    later = timedelta(milliseconds=later_ms)
    for attempt in all_attempts(run.attempts):
        assert attempt.ended
        times = {"started": attempt.started + later, "ended": attempt.ended + later}
        file = run.attempts / f"{attempt.number}.json"
        file.write_text(attempt.model_copy(update=times).model_dump_json())


def judge(run: Run, promoted: bool = True) -> GateRecord:
    """The gate's record: 55 of 64, the base 29."""
    unjudged = Comparison(digest="b" * 64, num_solved=29, wins=(), losses=(), p_value=1.0)
    gate = GateRecord(
        inputs="g" * 64,
        run_id=run.run_id,
        step=4,
        adapter=run.adapter_folder(4),
        adapter_digest=ADAPTER,
        base_digest=run.file.base_digest,
        image_digest=run.file.image_digest,
        mazes_digest=run.file.mazes_digest,
        num_mazes=64,
        num_solved=55,
        interval=(0.754, 0.924),
        base=unjudged,
        champion_digest=None,
        champion=None,
        held_out=(
            HeldOutScore(
                name="7x7", mazes_digest="h", num_mazes=8, num_solved=7, interval=(0.5, 0.98)
            ),
        ),
        policy=run.config.gate,
        promoted=promoted,
        reason="solves 55 of 64, the base 29",
    )
    records.save(gate, run.records)
    return gate


def host(home: Home, run: Run, port: int) -> None:
    """Put the run's adapter to service behind the door at `port`."""
    promotion = Promotion.now("gate", "gate", "solves 55 of 64")
    record = HostRecord(
        inputs="i",
        endpoint=Endpoint(url=f"http://127.0.0.1:{port}/v1", models={"maze-solver": ADAPTER}),
        adapter_name="maze-solver",
        adapter_digest=ADAPTER,
        gate="g" * 64,
        promotion=promotion,
    )
    records.save(record, run.records)
    hosted.remember(home, Hosted(run_id=run.run_id, step=4, adapter_digest=ADAPTER))


def last_line(run: Run) -> MetricsLine:
    return MetricsLine.model_validate_json(run.metrics.read_text().splitlines()[-1])


def add_step(run: Run, attempt: int | None = None, **values: float) -> MetricsLine:
    """A further step, now, like the last one but for `values`; `environment__success` and so on."""
    last = last_line(run)
    changed = {name.replace("__", "/"): value for name, value in values.items()}
    line = MetricsLine(
        step=last.step + 1,
        attempt=attempt or last.attempt,
        wall_time_ms=int(datetime.now(UTC).timestamp() * 1000),
        values=last.values | changed,
    )
    with run.metrics.open("a") as file:
        file.write(line.model_dump_json() + "\n")
    return line


def add_attempt(run: Run, started: datetime, **outcome: Any) -> Attempt:
    """The next attempt; `outcome` is how it ended, nothing for one that is open."""
    number = 1 + len(list(run.attempts.glob("*.json")))
    attempt = Attempt(
        number=number,
        submission_id=f"{run.run_id}-attempt-{number}",
        flow_run="test",
        started=started,
        start_step=last_line(run).step,
        **outcome,
    )
    (run.attempts / f"{number}.json").write_text(attempt.model_dump_json())
    return attempt


def end_attempt(run: Run, **outcome: Any) -> None:
    """End the newest attempt, now, with this outcome."""
    file = max(run.attempts.glob("*.json"), key=lambda file: int(file.stem))
    attempt = Attempt.model_validate_json(file.read_text())
    ended = attempt.model_copy(update={"ended": datetime.now(UTC), **outcome})
    file.write_text(ended.model_dump_json())


def take_turn(run: Run) -> Path:
    """Have this process work on the run, as its turn file says."""
    started = psutil.Process().create_time()
    file = run.folder / "turn.json"
    file.write_text(
        f'{{"flow_run_id": "f", "host": "{os.uname().nodename}", "pid": {os.getpid()},'
        f' "started": {started}, "token": "t"}}'
    )
    return file


@dataclass
class Door:
    """What the door's /status says."""

    port: int
    status: DoorStatus


@contextmanager
def serving(answer: Callable[[str], str], port: int = 0) -> Iterator[int]:
    """An HTTP server in a thread that answers GET with `answer(path)`; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer(self.path).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked has ended
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _running(ThreadingHTTPServer(("127.0.0.1", port), Handler)) as server:
        yield server.server_address[1]


@contextmanager
def door() -> Iterator[Door]:
    """A door that serves the recorded run's adapter, until it is told otherwise."""
    replica = ReplicaStatus(name="model-server-1", proven=1, in_flight=2, refuted=0, fault="")
    status = DoorStatus(
        file=Path("serving.json"),
        wanted=1,
        serving=1,
        champion_digest=ADAPTER,
        replicas=(replica, replica),
    )
    door = Door(0, status)
    with serving(lambda _: door.status.model_dump_json()) as door.port:
        yield door


@contextmanager
def exporter(home: Home, port: int = 0) -> Iterator[int]:
    """The exporter of `home` in a thread; its port."""
    with _running(build(home, port)) as server:
        yield server.server_address[1]


@contextmanager
def _running(server: Any) -> Iterator[Any]:
    # Short polls: a test that stops it does not wait.
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()
