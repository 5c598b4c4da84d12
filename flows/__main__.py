"""The command line: `python -m flows COMMAND`; the Makefile has the same commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table

from configs.loader import load_config
from flows import logs as log_lines
from flows import operate, see
from flows.show import show_findings, show_plan
from flows.terminal import describe_home, live_view, show
from tasks import services
from tasks.home import Home

app = typer.Typer(
    help="Ariadne: post-train, evaluate and host a maze solver.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(see.app, name="dashboards")
_out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
_INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C has ended."""


@app.command()
def up() -> None:
    """Start the services, or find them running, and register the deployments."""
    operate.bring_up(Home.from_environment(), _out.print)


@app.command()
def register() -> None:
    """Register deployments and automations with the server at PREFECT_API_URL."""
    operate.register(Home.from_environment(), _out.print)


@app.command()
def down() -> None:
    """Stop the services and everything else that runs here."""
    services.down(Home.from_environment())


@app.command()
def status() -> None:
    """Show what runs, and the newest runs. Exits with 3 when a service does not run."""
    home = Home.from_environment()
    states = services.status(home)
    table = Table("name", "up", "address", "state", box=None, padding=(0, 1, 0, 0))
    for state in states:
        table.add_row(state.name, "yes" if state.healthy else "no", state.url, state.description)
    show(_out, Group(table, "", describe_home(home)))
    if not all(state.healthy for state in states):
        raise typer.Exit(3)


@app.command()
def logs(
    lines: Annotated[int, typer.Option(min=1, help="how many of each log to begin with")] = 10,
    follow: Annotated[bool, typer.Option(help="go on with what is added")] = True,
) -> None:
    """Follow the logs of services, nodes and the newest job."""
    show = log_lines.follow_logs if follow else log_lines.show_logs
    show(Home.from_environment(), _out.print, lines)


@app.command()
def setup() -> None:
    """Make the trainer environment if it is missing."""
    operate.setup(_out.print)


@app.command()
def trainer_python() -> None:
    """Print the interpreter of the trainer environment."""
    _out.print(operate.trainer_python())


@app.command()
def run(
    profile: Annotated[str, typer.Option(help="configs/<profile>.toml")] = "local",
    steps: Annotated[int | None, typer.Option(help="training steps")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of training")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="step size")] = None,
    run_name: Annotated[str, typer.Option(help="name of the run's folder")] = "",
    force_rebuild: Annotated[bool, typer.Option(help="build the image anew")] = False,
) -> None:
    """Start the pipeline through the Prefect API, follow it, and show what came of it."""
    parameters = {
        "profile": profile,
        "steps": steps,
        "seed": seed,
        "learning_rate": learning_rate,
        "run_name": run_name,
        "force_rebuild": force_rebuild,
    }
    home = Home.from_environment()
    rows = operate.run(
        home, parameters, _out.print, lambda flow_run_id: live_view(_out, home, flow_run_id)
    )
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(row["what"], row["value"])
    show(_out, table)


@app.command()
def preflight(
    profile: Annotated[str, typer.Option(help="configs/<profile>.toml")] = "local",
    steps: Annotated[int | None, typer.Option(help="training steps")] = None,
    plan: Annotated[bool, typer.Option(help="print what would be made instead")] = False,
) -> None:
    """Check a profile before anything is paid for. Exits with 1 when the run is doomed."""
    # These load Prefect, which reads its settings then: `run` has them set first.
    from tasks.backends.wiring import make_backends
    from tasks.preflight.plan import plan as make_plan
    from tasks.preflight.stage import examine

    overrides = {"train.steps": steps} if steps is not None else {}
    config, home = load_config(profile, overrides), Home.from_environment()
    if plan:
        show_plan(make_plan(config, home, make_backends(config, home)), _out)
        return
    findings = examine(config, home)
    show_findings(findings, _out)
    if not all(each.ok for each in findings):
        raise typer.Exit(1)


@app.command()
def restore(
    run_id: Annotated[str, typer.Argument(help="name of the run")],
    profile: Annotated[str, typer.Option(help="whose store it is in")] = "local",
) -> None:
    """Bring a run back from the profile's object store, without its checkpoints."""
    from tasks import archives
    from tasks.backends.wiring import make_backends

    home = Home.from_environment()
    store = make_backends(load_config(profile), home).store
    if store is None:
        raise ValueError(f"configs/{profile}.toml has no section store: runs are not archived")
    _out.print(archives.restore(store, run_id, home.runs))


@app.command()
def solve(
    seed: Annotated[int, typer.Option(min=0, help="seed of the maze")] = 123,
    out: Annotated[Path | None, typer.Option(help="the animated picture to write")] = None,
) -> None:
    """Let the hosted adapter play one maze."""
    home = Home.from_environment()
    operate.solve(home, seed, out or home.root / f"solve-{seed}.gif")


def main() -> None:
    """Run a command; an error of ours is one line that names the next move."""
    try:
        app(prog_name="python -m flows")
    except operate.Left as left:
        _out.print(str(left))
        sys.exit(_INTERRUPTED)
    except (ValueError, LookupError, RuntimeError) as error:
        if "\n" in str(error):
            raise
        sys.exit(f"ariadne: {error}")


if __name__ == "__main__":
    main()
