"""Processes under a real supervisord."""

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from configs.loader import ROOT
from tasks import ports
from tasks.backends import leftovers
from tasks.backends.protocols import ProcessSpec
from tasks.backends.supervisord import Supervisord
from tasks.home import Home
from tests.waiting import wait_until

SLEEP = "import time; time.sleep(600)"
STUBBORN_FAMILY = """
import os, signal, subprocess, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
else:
    for session in (False, True):
        subprocess.Popen([sys.executable, __file__, sys.argv[1], "x"], start_new_session=session)
time.sleep(600)
"""
"""One child in the leader's group and one in a session of its own; both ignore SIGTERM."""
PORT_HOLDER = """
import socket, subprocess, sys, time
if len(sys.argv) > 2:
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print("listening", flush=True)
    time.sleep(600)
sys.exit(subprocess.call([sys.executable, __file__, sys.argv[1], "x"]))
"""
"""A server whose child has the port, as MLflow's has."""
REPAIRER = """
import sys, time
from pathlib import Path
from tasks.backends.protocols import ProcessSpec
from tasks.backends.supervisord import Supervisord
from tasks.home import Home

home = Home(Path(sys.argv[1]))
supervisord = Supervisord(home)
print("ready", flush=True)
while supervisord.states():
    time.sleep(0.05)
spec = ProcessSpec(name="asked-for", command=("sleep", "600"), environment={}, restart=True,
                   directory=home.root, log=home.logs / "asked-for.log")
supervisord.ensure(spec)
Path(sys.argv[2]).touch()
time.sleep(600)
"""
"""As a flow run does that finds its supervisord dead."""

SpecOf = Callable[..., ProcessSpec]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setattr("tasks.backends.supervisord._STOP_GRACE_S", 0.5)
    home = Home(tmp_path / "a home")
    yield home
    Supervisord(home).shutdown()
    shutil.rmtree(home.runtime)


@pytest.fixture
def spec_of(home: Home, tmp_path: Path) -> SpecOf:
    def make(code: str, *arguments: str, restart: bool = True, **environment: str) -> ProcessSpec:
        script = tmp_path / "program.py"
        script.write_text(code)
        return ProcessSpec(
            name="program",
            command=(sys.executable, str(script), *arguments),
            environment=environment,
            directory=tmp_path,
            log=home.logs / "program.log",
            restart=restart,
            stop_timeout_s=5,
        )

    return make


def started_by(home: Home) -> set[psutil.Process]:
    return leftovers.marked({leftovers.MARK: str(home.root)})


def gone(pid: int | None) -> bool:
    assert pid is not None
    return not psutil.pid_exists(pid) or not leftovers.alive(psutil.Process(pid))


def family(file: Path) -> list[psutil.Process]:
    """The child in the group and the one in a session, once both ignore SIGTERM."""
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
    children = [psutil.Process(int(pid)) for pid in file.read_text().split()]
    return sorted(children, key=lambda child: os.getsid(child.pid) == child.pid)


def test_a_process_is_adopted_by_its_spec_and_replaced_by_another(
    home: Home, spec_of: SpecOf
) -> None:
    first = Supervisord(home).ensure(spec_of(SLEEP))
    assert first.running and first.pid
    assert Supervisord(home).ensure(spec_of(SLEEP)).pid == first.pid
    other = Supervisord(home).ensure(spec_of(SLEEP, "other"))
    assert other.running and other.pid != first.pid
    assert gone(first.pid)
    assert [state.name for state in Supervisord(home).states()] == ["program"]


def test_callers_at_the_same_time_start_one_supervisord_and_one_process(
    home: Home, spec_of: SpecOf
) -> None:
    spec = spec_of(SLEEP)
    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(lambda _: Supervisord(home).ensure(spec), range(4)))
    assert len({state.pid for state in states}) == 1
    assert len(leftovers.supervisors(str(home.root))) == 1


def test_arguments_and_variables_arrive_as_they_were_given(
    home: Home, spec_of: SpecOf, tmp_path: Path
) -> None:
    value = """ a,'b' "c" ; # %d %(here)s %% \\ $HOME `x` é={"k": 1} """
    code = (
        "import json, os, sys; json.dump([sys.argv[2:], os.environ['V']], open(sys.argv[1], 'w'))"
    )
    spec = spec_of(code, str(tmp_path / "seen"), value, "", " ;x", restart=False, V=value)
    Supervisord(home).ensure(spec)
    wait_until(lambda: (tmp_path / "seen").exists() and (tmp_path / "seen").read_text())
    assert json.loads((tmp_path / "seen").read_text()) == [[value, "", " ;x"], value]


def test_a_secret_is_refused_rather_than_written_to_a_file(home: Home, spec_of: SpecOf) -> None:
    with pytest.raises(ValueError, match="VLLM_API_KEY would be written to a file"):
        Supervisord(home).ensure(spec_of(SLEEP, VLLM_API_KEY="hush"))
    assert not home.programs.exists() or not list(home.programs.iterdir())


def test_stop_ends_grandchildren_that_ignore_sigterm_and_keeps_the_spec(
    home: Home, spec_of: SpecOf, tmp_path: Path
) -> None:
    supervisord = Supervisord(home)
    spec = spec_of(STUBBORN_FAMILY, str(tmp_path / "pids"))
    first = supervisord.ensure(spec)
    children = family(tmp_path / "pids")
    supervisord.stop("program")
    assert not any(leftovers.alive(child) for child in children)
    state = supervisord.state("program")
    assert state is not None and not state.running
    again = supervisord.ensure(spec)
    assert again.running and again.pid != first.pid


def test_a_replacement_spares_what_went_into_a_session_of_its_own(
    home: Home, spec_of: SpecOf, tmp_path: Path
) -> None:
    supervisord = Supervisord(home)
    supervisord.ensure(spec_of(STUBBORN_FAMILY, str(tmp_path / "pids")))
    in_group, in_session = family(tmp_path / "pids")
    supervisord.ensure(spec_of(SLEEP))
    assert not leftovers.alive(in_group)
    assert leftovers.alive(in_session)


def test_remove_forgets_and_may_be_repeated(home: Home, spec_of: SpecOf) -> None:
    supervisord = Supervisord(home)
    supervisord.ensure(spec_of(SLEEP))
    supervisord.remove("program")
    supervisord.remove("program")
    assert supervisord.state("program") is None


def test_shutdown_leaves_no_process_and_may_be_repeated(
    home: Home, spec_of: SpecOf, tmp_path: Path
) -> None:
    supervisord = Supervisord(home)
    supervisord.ensure(spec_of(STUBBORN_FAMILY, str(tmp_path / "pids")))
    family(tmp_path / "pids")
    supervisord.shutdown()
    supervisord.shutdown()
    assert not started_by(home)
    assert supervisord.states() == []


def test_a_killed_server_starts_again_though_its_child_held_the_port(
    home: Home, spec_of: SpecOf
) -> None:
    supervisord = Supervisord(home)
    port = ports.any_free()
    first = supervisord.ensure(spec_of(PORT_HOLDER, str(port)))
    wait_until(lambda: not ports.is_free(port))
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    log = home.logs / "program.log"
    wait_until(lambda: log.read_text().count("listening") == 2)
    assert "Address already in use" not in log.read_text()


def only_supervisor(home: Home) -> psutil.Process:
    """The one supervisord; a child that it has just forked looks like it for a moment."""
    wait_until(lambda: len(leftovers.supervisors(str(home.root))) == 1)
    (daemon,) = leftovers.supervisors(str(home.root))
    return daemon


def test_a_killed_supervisord_is_recovered_with_what_it_kept(home: Home, spec_of: SpecOf) -> None:
    supervisord = Supervisord(home)
    kept = supervisord.ensure(spec_of(SLEEP))
    once = spec_of(SLEEP, restart=False).model_copy(update={"name": "once"})
    left = supervisord.ensure(once)
    daemon = only_supervisor(home)
    daemon.kill()
    daemon.wait(10)
    assert supervisord.states() == []
    assert (home.runtime / "supervisor.sock").exists()

    supervisord.start()

    assert gone(kept.pid) and gone(left.pid)
    wait_until(lambda: (state := supervisord.state("program")) and state.running)
    state = supervisord.state("once")
    assert state is not None and not state.running


def test_a_flow_run_that_revives_supervisord_is_not_ended_by_it(
    home: Home, spec_of: SpecOf, tmp_path: Path
) -> None:
    supervisord = Supervisord(home)
    done = tmp_path / "done"
    spec = spec_of(REPAIRER, str(home.root), str(done), restart=False, PYTHONPATH=str(ROOT))
    repairer = supervisord.ensure(spec)
    wait_until(lambda: "ready" in spec.log.read_text())
    daemon = only_supervisor(home)
    daemon.kill()
    wait_until(done.exists)
    assert not gone(repairer.pid)
    state = supervisord.state("asked-for")
    assert state is not None and state.running


def test_a_supervisord_that_lost_its_socket_is_replaced(home: Home, spec_of: SpecOf) -> None:
    supervisord = Supervisord(home)
    supervisord.ensure(spec_of(SLEEP))
    (home.runtime / "supervisor.sock").unlink()
    assert supervisord.ensure(spec_of(SLEEP)).running
    assert len(leftovers.supervisors(str(home.root))) == 1


def test_a_command_that_is_missing_says_so_in_its_log(home: Home, spec_of: SpecOf) -> None:
    spec = spec_of(SLEEP).model_copy(update={"command": ("/no/such/program",)})
    Supervisord(home).ensure(spec)
    wait_until(lambda: spec.log.read_text())
    assert "cannot start /no/such/program: No such file or directory" in spec.log.read_text()


def test_a_long_home_has_a_short_socket(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long" * 40))
    address = home.runtime / "supervisor.sock"
    home.create()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
    shutil.rmtree(home.runtime)


def test_a_home_with_a_character_that_means_something_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose a folder without it"):
        Home(tmp_path / "50%:off")
