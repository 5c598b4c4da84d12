"""The whole chain, run once for all tests that look at what it left behind."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tasks.run_dir import Run, open_run
from tests.homes import kill, start
from tests.waiting import wait_until


@dataclass(frozen=True)
class Chain:
    """A finished smoke run."""

    home: Home
    output: str
    killed_pid: int

    @property
    def run(self) -> Run:
        (folder,) = self.home.runs.iterdir()
        return open_run(self.home.runs, folder.name)


@contextmanager
def run_chain(folder: Path) -> Generator[Chain]:
    """Run the smoke profile and kill the training job after its first committed checkpoint."""
    home = Home(folder / "home")
    log: Path = home.root.parent / "run.log"
    try:
        running = start(home, log, "--profile", "smoke")
        markers = "*/checkpoints/global_step_1/COMMITTED.json"
        wait_until(
            lambda: any(home.runs.glob(markers)) or running.poll() is not None, timeout_s=480
        )
        killed = kill(home, "containers.trainer.train_main")
        running.wait(timeout=600)
        assert running.returncode == 0, log.read_text()[-3000:]
        yield Chain(home, log.read_text(), killed)
    finally:
        Supervisord(home).shutdown()
