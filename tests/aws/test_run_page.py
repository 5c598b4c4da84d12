"""What a cluster waits for is told on the page of the flow run, though no backend knows Prefect."""

import json
import os
import subprocess
import sys
from pathlib import Path

from configs.loader import ROOT
from tasks.home import Home
from tasks.services import Services

PROGRAM = """
import json, logging, prefect.main
from prefect.logging.handlers import APILogHandler
from tasks.backends.kuberay import KubeRay

told = []
APILogHandler.emit = lambda self, record: told.append(record.getMessage())
object.__new__(KubeRay)._tell("a pod: no node takes it", "")
print(json.dumps(told))
"""


def told(environment: dict[str, str]) -> list[str]:
    """What a process with these variables hands to Prefect's log of runs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_reason_to_wait_is_on_the_runs_page(tmp_path: Path) -> None:
    variables = Services.at(4200, 5000).environment(Home(tmp_path / "home"))
    assert told(variables) == ["cluster: waiting: a pod: no node takes it"]
    del variables["PREFECT_LOGGING_EXTRA_LOGGERS"]
    assert told(variables) == [], "the variable is what brings it there"
