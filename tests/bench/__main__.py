"""The driver, in the control environment: `python -m tests.bench [PART ...] [--short]`."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from configs.loader import ROOT
from flows.operate import trainer_python
from tasks.home import Home
from tests.bench.measures import Measure, heard

IN_TRAINER = ("maze", "checkpoint", "episodes", "rollout")
IN_CONTROL = ("folders", "chain", "choices")
PARTS = (*IN_TRAINER, *IN_CONTROL)
_TIMEOUT_S = 3600


class Report(BaseModel):
    """The file that a benchmark leaves."""

    command: str
    machine: str
    versions: dict[str, str]
    measures: list[Measure]


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=", ".join(PARTS))] = None,
    short: Annotated[bool, typer.Option(help="everything tiny: only shows that it runs")] = False,
) -> None:
    """Measure the named parts, or all."""
    chosen = parts or list(PARTS)
    if unknown := [part for part in chosen if part not in PARTS]:
        raise typer.BadParameter(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    measures = [measure for part in chosen for measure in measure_part(part, short)]
    report = Report(
        command=f"make bench ARGS='{' '.join(sys.argv[1:])}'",
        machine=machine(),
        versions={name: version(name) for name in ("prefect", "mlflow", "httpx")},
        measures=measures,
    )
    show(report)
    folder = Home.from_environment().root / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    file.write_text(report.model_dump_json(indent=1) + "\n")
    Console(soft_wrap=True).print(file)


def measure_part(part: str, short: bool) -> list[Measure]:
    """Run one part in a process of its own; its notes go to the terminal.

    Raises:
        typer.Exit: the part failed; it has said why.
    """
    python = trainer_python() if part in IN_TRAINER else sys.executable
    command = [python, "-m", f"tests.bench.{part}", *(["--short"] if short else [])]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(f"the part {part} failed\n")
        raise typer.Exit(1)
    return heard(done.stdout)


def machine() -> str:
    """Processor and cores."""
    lines = Path("/proc/cpuinfo").read_text().split("\n")
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}"


def show(report: Report) -> None:
    """One row a measure."""
    table = Table("part", "measure", "value", "unit", "target", "met", box=None)
    for each in report.measures:
        sign = {"higher": "at least", "lower": "at most"}[each.better]
        target = "" if each.target is None else f"{sign} {each.target:g}"
        met = {None: "", True: "yes", False: "NO"}[each.is_met]
        table.add_row(each.part, each.what, f"{each.value:.4g}", each.unit, target, met)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{report.command}\n{report.machine}\n{report.versions}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
