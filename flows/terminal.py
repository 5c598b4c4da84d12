"""What a person sees in a terminal: a run as it goes on, and the newest runs.

Where nobody looks (a pipe, a CI log) the same words come as plain lines, and nothing moves.
"""

import io
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tasks.attempts import Attempt
from tasks.holder import read_turn
from tasks.home import Home
from tasks.hosted import history
from tasks.progress import Progress, Watch, duration, newest_runs

_PLAIN_WIDTH = 1000
"""Of a terminal that is none: nothing is wrapped or cut."""
_LOOK_EVERY_S = 1.0
_BAR_WIDTH = 20
_WIDE = 100
_NUM_ATTEMPTS = 5
_NUM_RUNS = 8
_REPORT = "report.html"
_STYLES = {
    "done": "green",
    "running": "bold cyan",
    "waiting": "dim",
    "stopped": "bold red",
    "left out": "dim",
    "hosted": "green",
    "not promoted": "yellow",
    "failed": "bold red",
    "interrupted": "yellow",
}


def show(console: Console, what: RenderableType) -> None:
    """Print it; where there is no terminal without colours, wrapping and trailing blanks."""
    if console.is_terminal:
        console.print(what)
        return
    for line in plain(what).splitlines():
        console.print(line)


def plain(what: RenderableType) -> str:
    """The same as plain lines."""
    text = io.StringIO()
    Console(file=text, width=_PLAIN_WIDTH, color_system=None, force_terminal=False).print(what)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


class RunView:
    """A run of a home as it stands when it is drawn; found by the flow run that works on it."""

    def __init__(self, home: Home, flow_run_id: str) -> None:
        self._home, self._flow_run_id = home, flow_run_id
        self._watch: Watch | None = None
        self._drawn: RenderableType = Spinner("dots", "the flow is about to start")
        self._look_at = 0.0

    def __rich__(self) -> RenderableType:
        if time.monotonic() >= self._look_at:
            with suppress(OSError, ValueError):  # deleted under our eyes: the last picture stays
                self._watch = self._watch or self._find()
                if self._watch:
                    self._drawn = describe_run(self._watch.look())
            self._look_at = time.monotonic() + _LOOK_EVERY_S
        return self._drawn

    def _find(self) -> Watch | None:
        for run in newest_runs(self._home, _NUM_RUNS):
            turn = read_turn(run)
            if turn and turn.flow_run_id == self._flow_run_id:
                return Watch(run)
        return None


@contextmanager
def live_view(console: Console, home: Home, flow_run_id: str) -> Generator[None]:
    """Keep the run's picture below what is printed; only in a terminal that can."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    view = RunView(home, flow_run_id)
    with Live(view, console=console, refresh_per_second=4, vertical_overflow="crop"):
        yield


def describe_run(progress: Progress) -> RenderableType:
    """Stages with what came of them, training as a bar, and the attempts."""
    title = Text.assemble("run ", (progress.run.run_id, "bold"), "  ", _styled(progress.standing))
    stages = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    stages.add_column(no_wrap=True)
    stages.add_column(no_wrap=True)
    stages.add_column()
    for stage in progress.stages:
        is_bar = stage.name == "train" and stage.state == "running"
        words = _Bar(stage.percent, stage.detail) if is_bar else _words(stage.detail)
        stages.add_row(f"  {stage.name}", _styled(stage.state), words)
    return Group(title, stages, *_describe_attempts(progress.attempts))


class _Bar:
    """A bar before words; the words alone where there is no terminal."""

    def __init__(self, percent: float, words: str) -> None:
        self._percent, self._words = percent, words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._row(console)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._row(console))

    def _row(self, console: Console) -> RenderableType:
        if not console.is_terminal:
            return _words(self._words)
        width = _BAR_WIDTH if console.width >= _WIDE else _BAR_WIDTH // 2
        row = Table.grid(padding=(0, 1))
        row.add_column(width=width)
        row.add_column()
        row.add_row(ProgressBar(100.0, self._percent, width=width), _words(self._words))
        return row


def _describe_attempts(attempts: Iterable[Attempt]) -> Iterable[RenderableType]:
    """The last few; a single one that goes well says nothing new."""
    known = list(attempts)
    if len(known) < 2 and not any(attempt.cause for attempt in known):
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for attempt in known[-_NUM_ATTEMPTS:]:
        steps = f"from step {attempt.start_step}"
        steps += f" to {attempt.end_step}" if attempt.end_step is not None else ""
        words = _words(attempt.reason or "goes on", style="red" if attempt.cause else "")
        table.add_row(f"  attempt {attempt.number}", steps, words)
    yield table


def _words(text: str, style: str = "") -> Text:
    """As much of a sentence as there is room for; its column gives way before the others do."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def describe_home(home: Home) -> RenderableType:
    """The newest run, a table of those before it, and what serves."""
    looks: list[Progress] = []
    for run in newest_runs(home, _NUM_RUNS):
        with suppress(OSError, ValueError):  # it is being deleted, or damaged: the others count
            looks.append(Watch(run).look())
    if not looks:
        return Text("no runs yet: `make run` starts the first")
    parts = [describe_run(looks[0]), Text(), _describe_runs(looks, home), Text()]
    return Group(*parts, *_describe_places(home, looks[0]))


def _describe_runs(looks: list[Progress], home: Home) -> Table:
    served = history(home)
    serving = served[-1].adapter_digest if served else ""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="ellipsis", no_wrap=True)
    for name in ("state", "step", "batch success", "mazes", "attempts", "serves", "last step"):
        table.add_column(name, no_wrap=True)
    for look in looks:
        scores = look.records.evaluate
        is_serving = scores is not None and scores.adapter_digest == serving
        table.add_row(
            look.run.run_id,
            _styled(look.standing),
            f"{look.step} of {look.num_steps}",
            "-" if look.success is None else f"{look.success:.0%}",
            f"{scores.num_solved} of {scores.num_mazes}" if scores else "-",
            str(len(look.attempts)),
            "yes" if is_serving else "no",
            _ago(look),
        )
    return table


def _ago(look: Progress) -> str:
    if not look.recent:
        return "-"
    seconds = datetime.now().timestamp() - look.recent[-1].wall_time_ms / 1000
    return f"{duration(max(0.0, seconds))} ago"


def _describe_places(home: Home, look: Progress) -> Iterable[Text]:
    """Where the endpoint, the report and the files are."""
    served, records = history(home), look.records
    if served:
        now = served[-1]
        where = (
            f"{records.host.endpoint.url} as {records.host.adapter_name}, " if records.host else ""
        )
        yield Text(f"serves   {where}step {now.step} of {now.run_id}")
    report: Path | None = records.evaluate.results / _REPORT if records.evaluate else None
    if report and report.is_file():
        yield Text(f"report   {report}")
    yield Text(f"files    {look.run.folder}")
