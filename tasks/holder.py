"""turn.json: who works on a run, or worked on it last; turns are taken in turn.py.

It loads no Prefect, so that `make status` is quick.
"""

import socket
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from tasks.run_dir import Run

CLOCK_MAY_MOVE_S = 60


class Turn(BaseModel):
    """turn.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flow_run_id: str
    host: str
    pid: int
    started: float
    """Of the process, in seconds since 1970: numbers of processes are used again."""
    token: str
    """Nobody else's: start times are computed anew whenever the clock is set."""

    @property
    def is_here(self) -> bool:
        """It was taken on this machine."""
        return self.host == socket.gethostname()

    def process(self) -> psutil.Process | None:
        """The process itself, if it is one of this machine and lives."""
        try:
            process = psutil.Process(self.pid) if self.is_here else None
            if process and abs(process.create_time() - self.started) < CLOCK_MAY_MOVE_S:
                return process
        except psutil.NoSuchProcess:
            pass
        return None


def read_turn(run: Run) -> Turn | None:
    """Who has the run, or had it last."""
    try:
        return Turn.model_validate_json(turn_file(run).read_text())
    except (FileNotFoundError, ValueError):
        return None


def turn_file(run: Run) -> Path:
    return run.folder / "turn.json"
