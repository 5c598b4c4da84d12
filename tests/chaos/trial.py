"""One trial: a run on real services, a fault at a chosen moment, and what came of it.

A trial of the same settings without a fault says what should have come of it. Every answer of a
training step is drawn with its own seed, so the adapter is the same to the last bit.
"""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import psutil

from tasks.attempts import all_attempts
from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tasks.run_dir import Run, open_run
from tests.homes import ROOT, address, find, flow_processes, kill_all, start
from tests.waiting import wait_until

TRAINER = "containers.trainer.train_main"
NUM_STEPS = 4
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Facts:
    """What a finished run is, whatever happened on the way."""

    steps: tuple[int, ...]
    points: tuple[int, ...]
    """Steps of which the tracker has a point, as often as it has one."""
    adapter_digest: str
    tensors: dict[str, str]
    """Hashes of the last checkpoint's tensors: weights and optimizer. Files that hold the same
    may list it in another order."""
    solved: int
    served_digest: str
    tracker_status: str
    leftovers: tuple[str, ...]
    """Processes and kept programs of training that should be gone."""
    num_open_attempts: int


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    fault: str
    outcome: str
    attempts: int
    steps_lost: int | None
    seconds: float | None
    """From the fault to the next step that is new."""


def tensor_digests(file: Path) -> dict[str, str]:
    """The hash of each tensor of a safetensors file."""
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {
        name: sha256(
            content[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]]
        ).hexdigest()
        for name, entry in header.items()
    }


class Trial:
    """A run of the smoke profile under a name of its own."""

    def __init__(
        self, home: Home, name: str, logs: Path, *arguments: str, root: Path = ROOT
    ) -> None:
        self.home, self.name, self.root = home, name, root
        self.log = logs / f"{name}.log"
        self.arguments = ("--profile", "smoke", "--steps", str(NUM_STEPS), *arguments)
        self._struck: tuple[float, int] | None = None
        self._seconds: float | None = None
        self.flow = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        named = ("--run-name", self.name)
        return start(self.home, self.log, *self.arguments, *named, root=self.root)

    @property
    def run(self) -> Run:
        return open_run(self.home.runs, self.name)

    @property
    def folder(self) -> Path:
        return self.home.runs / self.name

    def wait(self, holds: Callable[[], Any], timeout_s: float = _TIMEOUT_S) -> None:
        """Until `holds()`, or fail as soon as the flow ends without it."""
        wait_until(lambda: holds() or self.flow.poll() is not None, timeout_s)
        assert holds(), self.log.read_text()[-3000:]

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.last_step() >= step)

    def last_step(self) -> int:
        """The newest step with a line of metrics."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        return max((json.loads(line)["step"] for line in lines), default=0)

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"global_step_{step}"

    def is_committed(self, step: int) -> bool:
        return (self.checkpoint(step) / "COMMITTED.json").is_file()

    def catch(self, holds: Callable[[], bool]) -> None:
        """Wait for a moment that passes within milliseconds."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline and self.flow.poll() is None
            time.sleep(0.001)

    def strike(self, fault: Callable[[], Any]) -> None:
        """Do the fault and note when, and what was trained by then."""
        self._struck = (time.monotonic(), self.last_step())
        fault()

    def kill(self, word: str) -> None:
        """SIGKILL to the processes of this home with this word in their command line."""
        found = find(self.home, word)
        assert found, f"no process {word}"
        kill_all(found)

    def kill_program(self, name: str) -> None:
        """SIGKILL to a kept program and all it started, as when its machine dies."""
        (state,) = [each for each in Supervisord(self.home).states() if each.name == name]
        assert state.pid
        process = psutil.Process(state.pid)
        kill_all([process, *process.children(recursive=True)])

    def end(self, timeout_s: float = _TIMEOUT_S) -> int:
        """Wait for the end of the flow, noting when training has caught up."""
        deadline = time.monotonic() + timeout_s
        while self.flow.poll() is None:
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            self.note_progress()
            time.sleep(0.2)
        self.note_progress()
        # Its last breath comes after its last state.
        wait_until(lambda: not flow_processes(self.home))
        return self.flow.returncode

    def note_progress(self) -> None:
        if self._struck and self._seconds is None and self.last_step() > self._struck[1]:
            self._seconds = time.monotonic() - self._struck[0]

    def facts(self) -> Facts:
        run = self.run
        step = run.committed_step()
        host = json.loads((run.records / "host.json").read_text())
        evaluated = json.loads((run.records / "evaluate.json").read_text())
        programs = [state.name for state in Supervisord(self.home).states() if state.running]
        return Facts(
            steps=tuple(line.step for line in run.steps()),
            points=tuple(point["step"] for point in self.history("environment/success")),
            adapter_digest=evaluated["adapter_digest"],
            tensors={
                name: digest
                for file in self.checkpoint(step).rglob("*.safetensors")
                for name, digest in tensor_digests(file).items()
            },
            solved=evaluated["num_solved"],
            served_digest=host["endpoint"]["models"][host["adapter_name"]],
            tracker_status=self.tracked()["info"]["status"],
            leftovers=(
                *(name for name in programs if name.startswith("ray-")),
                *(" ".join(process.cmdline()) for process in find(self.home, TRAINER)),
                *(str(process.pid) for process in flow_processes(self.home)),
            ),
            num_open_attempts=sum(a.ended is None for a in all_attempts(run.attempts)),
        )

    def row(self, fault: str, outcome: str = "as undisturbed") -> Row:
        known = all_attempts(self.run.attempts)
        lost = None
        if self._struck and len(known) > 1:
            lost = max(0, self._struck[1] - known[1].start_step)
        return Row(fault, outcome, len(known), lost, self._seconds)

    def tracked(self) -> dict[str, Any]:
        """The run as MLflow has it."""
        found = self._mlflow("runs/search", {"experiment_ids": ["1"]})["runs"]
        (run,) = [each for each in found if each["info"]["run_name"] == self.name]
        return run

    def history(self, metric: str) -> list[dict[str, Any]]:
        run_id = self.tracked()["info"]["run_id"]
        url = f"{address(self.home, 'mlflow_url')}/api/2.0/mlflow/metrics/get-history"
        answer = httpx.get(url, params={"run_id": run_id, "metric_key": metric}, timeout=30)
        return answer.json().get("metrics", [])

    def _mlflow(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"{address(self.home, 'mlflow_url')}/api/2.0/mlflow/{call}"
        return httpx.post(url, json=body, timeout=30).json()
