"""Dashboards from the terminal: `python -m flows dashboards COMMAND`."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tasks.backends.managed_grafana import ManagedGrafana
from tasks.dashboards import files
from tasks.home import Home
from tasks.metrics.services import HOW_TO_GET_PROMETHEUS, MetricsServices

app = typer.Typer(help="Grafana's dashboards, and pictures of them.", no_args_is_help=True)
_out = Console(soft_wrap=True, highlight=False)
_FOLDER = ("ariadne", "Ariadne")


@app.command()
def write() -> None:
    """Write configs/grafana/*.json from their plans in tasks/dashboards."""
    for file in files.write_all():
        _out.print(file.name)


@app.command()
def upload() -> None:
    """Have them in the Grafana of GRAFANA_URL, with the key in GRAFANA_TOKEN."""
    grafana = ManagedGrafana.from_environment()
    uid, title = _FOLDER
    grafana.ensure_folder(uid, title)
    for plan in files.DASHBOARDS:
        outcome = grafana.upload(files.file_of(plan).read_text(), uid)
        _out.print(f"{plan.title}: {outcome}")


@app.command()
def sheet(
    out: Annotated[Path | None, typer.Option(help="folder for the pictures")] = None,
    hours: Annotated[float, typer.Option(min=0.01, help="how far back")] = 1.0,
    run: Annotated[str, typer.Option(help="a run, or a regular expression of runs")] = ".*",
    url: Annotated[str, typer.Option(help="of a Prometheus; else this home's")] = "",
) -> None:
    """Draw every panel of every dashboard, a picture each, without Grafana."""
    from tasks.dashboards.sheet import draw

    home = Home.from_environment()
    metrics = MetricsServices.recorded(home)
    address = url or (metrics.prometheus_url if metrics else "")
    if not address:
        raise RuntimeError(HOW_TO_GET_PROMETHEUS if metrics else "`make up` starts Prometheus")
    folder = out or home.root / "dashboards"
    for plan in files.DASHBOARDS:
        since = time.time() - 3600 * hours
        _out.print(draw(plan, address, since, run, folder / files.file_of(plan).stem))
