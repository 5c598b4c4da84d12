"""The leash: no way for an owner to end leaves a process of its command running."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from configs.loader import ROOT
from containers.server.leash import bound_log, leashed
from tests.waiting import wait_until

STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 2:
    print("started", flush=True)
    subprocess.Popen([sys.executable, "-c", os.environ["STUBBORN"], sys.argv[1], "grandchild"])
    if os.environ.get("CHILD_ENDS"):
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.01)
        sys.exit(7)
else:
    unfinished = pathlib.Path(sys.argv[1] + ".unfinished")
    unfinished.write_text(str(os.getpgid(0)))
    unfinished.rename(sys.argv[1])
time.sleep(600)
"""
"""A child and its grandchild, both deaf to SIGTERM; the grandchild writes down their group."""

OWNER = """
import json, pathlib, sys, time
from containers.server.leash import leashed
command, environment, log = json.loads(sys.argv[1])
with leashed(command, environment, pathlib.Path(log)):
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leash is started as a module, so from the project's root."""
    monkeypatch.chdir(ROOT)


def stubborn(folder: Path, **environment: str) -> tuple[list[str], dict[str, str], Path]:
    """The arguments of `leashed` for a command that does not end by itself."""
    command = [sys.executable, "-c", STUBBORN, str(folder / "group")]
    return command, {"STUBBORN": STUBBORN} | environment, folder / "log"


def group_of(folder: Path) -> int:
    """The group of the command, once the grandchild runs."""
    path = folder / "group"
    wait_until(path.exists)
    group = int(path.read_text())
    assert len(members(group)) == 2
    return group


def processes() -> list[tuple[int, int, int]]:
    """Process, parent and group of all that live; one that waits to be reaped does not."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if state not in "ZX":
            found.append((int(stat.parent.name), int(parent), int(group)))
    return found


def members(group: int) -> list[int]:
    return [process for process, _, of_group in processes() if of_group == group]


def assert_gone(group: int) -> None:
    """Killed processes take the kernel a moment, so this waits for it."""
    wait_until(lambda: not members(group))


def test_the_group_is_gone_after_the_with(tmp_path: Path) -> None:
    with leashed(*stubborn(tmp_path)) as process:
        group = group_of(tmp_path)
        assert process.poll() is None
    assert_gone(group)
    assert process.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "log").read_text() == "started\n"


def test_the_group_is_gone_when_the_with_ends_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="on purpose"), leashed(*stubborn(tmp_path)):
        group = group_of(tmp_path)
        raise RuntimeError("on purpose")
    assert_gone(group)


def test_the_group_is_gone_after_a_sigterm_to_the_leader(tmp_path: Path) -> None:
    with leashed(*stubborn(tmp_path)) as process:
        group = group_of(tmp_path)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
        assert_gone(group)


def test_the_group_is_gone_after_the_owner_was_killed(tmp_path: Path) -> None:
    arguments = json.dumps(stubborn(tmp_path), default=str)
    with subprocess.Popen([sys.executable, "-c", OWNER, arguments]) as owner:
        group = group_of(tmp_path)
        (leader,) = [process for process, parent, _ in processes() if parent == owner.pid]
        owner.kill()
    assert_gone(group)
    wait_until(lambda: leader not in [process for process, _, _ in processes()])


def test_what_the_command_leaves_behind_is_gone_when_it_ends_by_itself(tmp_path: Path) -> None:
    with leashed(*stubborn(tmp_path, CHILD_ENDS="1")) as process:
        assert process.wait(timeout=30) == 7
        assert_gone(int((tmp_path / "group").read_text()))


def test_a_log_that_grew_too_large_begins_anew_and_what_writes_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as log:
        log.write(b"x" * 2000)
        bound_log(log.fileno(), max_bytes=2000)
        assert path.stat().st_size == 2000
        log.write(b"y\n")
        bound_log(log.fileno(), max_bytes=2000)
        log.write(b"z\n")
    assert path.read_bytes() == b"z\n"
    assert path.with_name("log.1").read_bytes() == b"x" * 2000 + b"y\n"
