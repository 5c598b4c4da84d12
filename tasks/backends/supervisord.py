"""Processes, kept by one supervisord (supervisor, from PyPI) per home.

It is a daemon: what it keeps outlives the command or flow that asked for it, is started again
when it dies, and ends with `shutdown`. If supervisord itself is killed, the next `ensure` ends
what it left, starts it, and it starts again whatever was to be kept. Its configuration lies in
the home; its socket and pid file in the runtime folder, which a reboot may clear.
"""

import http.client
import os
import socket
import subprocess
import sys
import time
import xmlrpc.client
from typing import Any

import psutil
from supervisor.states import ProcessStates
from supervisor.xmlrpc import Faults

from tasks.backends import leftovers
from tasks.backends.protocols import ProcessSpec, ProcessState
from tasks.backends.supervisord_ini import program, supervisor
from tasks.home import Home, write_private

_RPC_TIMEOUT_S = 10
_START_TIMEOUT_S = 30
_STOP_GRACE_S = 3

_FOREIGN = ("PREFECT_", "MLFLOW_", "SUPERVISOR_", "MAKE", "MFLAGS")
"""Settings of whoever happens to call must not leak into what outlives the call."""

_NO_DAEMON = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError)


class Supervisord:
    """The home's processes. Any number of these objects, in any process, act as one."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._socket = home.runtime / "supervisor.sock"
        self._config = home.services / "supervisord.conf"
        self._log = home.logs / "supervisord.log"

    def start(self) -> None:
        """Have supervisord run. It starts again what was kept when the last one was killed."""
        with self._home.locked("supervisor"):
            self._start()

    def clear(self) -> None:
        """End what a killed supervisord left, its ports with it; nothing while one runs."""
        with self._home.locked("supervisor"):
            if not self._answers():
                self._clear()

    def ensure(self, spec: ProcessSpec) -> ProcessState:
        """As the Protocol says. Returns once the process is spawned, not once it is healthy."""
        text = program(spec)
        path = self._home.programs / f"{spec.name}.conf"
        with self._home.locked("supervisor"):
            self._start()
            known = self.state(spec.name) is not None
            if not known or not path.exists() or path.read_text() != text:
                self._forget(spec.name)
                spec.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_private(path, text)
                self._call("reloadConfig")
                self._call("addProcessGroup", spec.name)
            self._call("startProcess", spec.name, False, allow=(Faults.ALREADY_STARTED,))
            state = self.state(spec.name)
            assert state is not None, f"{spec.name} was added above"
            return state

    def state(self, name: str) -> ProcessState | None:
        return next((state for state in self.states() if state.name == name), None)

    def states(self) -> list[ProcessState]:
        try:
            return [_state(info) for info in self._call("getAllProcessInfo")]
        except _NO_DAEMON:
            return []

    def stop(self, name: str) -> None:
        """As the Protocol says; children that moved to a session of their own end too."""
        with self._home.locked("supervisor"):
            self._stop(name)

    def remove(self, name: str) -> None:
        with self._home.locked("supervisor"):
            self._stop(name)
            self._forget(name)

    def shutdown(self, timeout_s: int = 60) -> None:
        """End all that supervisord ever started, and itself; forget every spec.

        The caller and its ancestors are spared. Returns when nothing else is left.

        Raises:
            RuntimeError: something was still alive after `timeout_s`.
        """
        with self._home.locked("supervisor"):
            if self._answers():
                self._call("stopAllProcesses", timeout_s=timeout_s)
                self._call("shutdown")
            deadline = time.monotonic() + timeout_s
            while left := self._marked() - leftovers.lineage():
                if time.monotonic() > deadline:
                    pids = " ".join(str(process.pid) for process in left)
                    raise RuntimeError(f"still alive: {pids}; end them with `kill -9 {pids}`")
                leftovers.end(left, _STOP_GRACE_S)
            for path in self._home.programs.glob("*.conf"):
                path.unlink()

    def _start(self) -> None:
        if self._answers():
            return
        self._clear()
        write_private(self._config, supervisor(self._home, self._socket, self._log))
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._config)]
        started = subprocess.run(
            command,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=_START_TIMEOUT_S,
        )
        if started.returncode:
            said = (started.stderr or started.stdout).strip().splitlines() or ["nothing"]
            raise RuntimeError(f"supervisord did not start: {said[-1]}; its log is {self._log}")

    def _clear(self) -> None:
        """The flow run that may be repairing this is spared, and so are its siblings."""
        # One that lost its socket would otherwise start again what is ended here.
        leftovers.end(leftovers.supervisors(str(self._home.root)), grace_s=0)
        left = self._marked() - leftovers.own_tree(str(self._home.root))
        leftovers.end(left, _STOP_GRACE_S)

    def _stop(self, name: str) -> None:
        started = leftovers.marked(self._mark() | {leftovers.NAME: name})
        left = self._halt(name) | started
        leftovers.end(left - leftovers.lineage(), _STOP_GRACE_S)

    def _halt(self, name: str) -> set[psutil.Process]:
        """Stop the process. supervisord is content when it is gone; returns the group's rest."""
        state = self.state(name)
        if state is None:
            return set()
        self._call("stopProcess", name, timeout_s=600, allow=(Faults.NOT_RUNNING,))
        return leftovers.group(state.pid) if state.pid else set()

    def _forget(self, name: str) -> None:
        """What left the process's group goes on: a flow run outlives a worker's replacement."""
        leftovers.end(self._halt(name), _STOP_GRACE_S)
        if self.state(name):
            self._call("removeProcessGroup", name)
        (self._home.programs / f"{name}.conf").unlink(missing_ok=True)

    def _mark(self) -> dict[str, str]:
        return {leftovers.MARK: str(self._home.root)}

    def _marked(self) -> set[psutil.Process]:
        return leftovers.marked(self._mark())

    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if _inheritable(key)}
        # What it runs talks to this machine, whatever proxy the caller has.
        direct = [inherited.get("NO_PROXY") or inherited.get("no_proxy", ""), "127.0.0.1,localhost"]
        no_proxy = ",".join(filter(None, direct))
        return inherited | self._mark() | {"NO_PROXY": no_proxy, "no_proxy": no_proxy}

    def _answers(self) -> bool:
        try:
            self._call("getState")
        except _NO_DAEMON:
            return False
        return True

    def _call(
        self,
        method: str,
        *arguments: str | bool,
        timeout_s: float = _RPC_TIMEOUT_S,
        allow: tuple[int, ...] = (),
    ) -> Any:
        transport = _Transport(str(self._socket), timeout_s)
        with xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=transport) as server:
            try:
                return getattr(server.supervisor, method)(*arguments)
            except xmlrpc.client.Fault as fault:
                if fault.faultCode in allow:
                    return None
                raise RuntimeError(
                    f"supervisord refused {method} {arguments}: {fault.faultString}; "
                    f"its log is {self._log}"
                ) from fault
            except TimeoutError as error:
                raise RuntimeError(
                    f"supervisord does not answer within {timeout_s:.0f} s; "
                    f"see {self._log}, then `make down` ends it"
                ) from error


class _Transport(xmlrpc.client.Transport):
    """XML-RPC over a unix socket, with a timeout (supervisor's own transport has none)."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__()
        self._path = path
        self._timeout_s = timeout_s

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self._path, self._timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _inheritable(variable: str) -> bool:
    return not variable.startswith(_FOREIGN)


def _state(info: dict[str, Any]) -> ProcessState:
    return ProcessState(
        name=info["name"],
        running=info["state"] in (ProcessStates.STARTING, ProcessStates.RUNNING),
        pid=info["pid"] or None,
        description=f"{info['statename'].lower()}, {info['description']}",
    )
