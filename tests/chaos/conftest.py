"""One home for all trials, one undisturbed run to compare with, and the table at the end."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tests.chaos.trial import NUM_STEPS, Facts, Row, Trial

_ROWS: list[Row] = []

Begin = Callable[..., Trial]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("chaos") / "home")
    try:
        yield home
    finally:
        Supervisord(home).shutdown()


@pytest.fixture(scope="session")
def logs(home: Home) -> Path:
    folder = home.root.parent / "logs"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def undisturbed(home: Home, logs: Path) -> Facts:
    """What comes of the run when nothing happens to it."""
    trial = Trial(home, "undisturbed", logs)
    assert trial.end() == 0, trial.log.read_text()[-3000:]
    facts = trial.facts()
    assert facts.steps == facts.points == tuple(range(1, NUM_STEPS + 1))
    assert facts.adapter_digest == facts.served_digest
    assert facts.tracker_status == "FINISHED"
    assert facts.leftovers == () and facts.num_open_attempts == 0
    _ROWS.append(trial.row("none"))
    return facts


@pytest.fixture
def begin(
    home: Home, logs: Path, undisturbed: Facts, request: pytest.FixtureRequest
) -> Iterator[Begin]:
    """Begin a trial under the name of the test; its run is deleted when all is well."""
    begun: list[Trial] = []

    def act(*arguments: str) -> Trial:
        name = request.node.name.removeprefix("test_").replace("_", "-")
        name = "".join(c for c in name if c.isalnum() or c == "-")[:60].strip("-")
        begun.append(Trial(home, name, logs, *arguments))
        return begun[-1]

    yield act
    for trial in begun:
        if trial.flow.poll() is None:
            trial.flow.kill()
            trial.flow.wait()
        shutil.rmtree(trial.folder / "scratch", ignore_errors=True)


@pytest.fixture
def report() -> Callable[[Row], None]:
    return _ROWS.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table that the README carries."""
    if not _ROWS:
        return
    write = terminalreporter.write_line
    write("")
    write("| fault | outcome | attempts | steps lost | seconds to the next step |")
    write("|---|---|---|---|---|")
    for row in _ROWS:
        lost = "-" if row.steps_lost is None else str(row.steps_lost)
        seconds = "-" if row.seconds is None else f"{row.seconds:.0f}"
        write(f"| {row.fault} | {row.outcome} | {row.attempts} | {lost} | {seconds} |")
