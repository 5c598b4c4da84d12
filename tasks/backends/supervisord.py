"""Processes under supervisord: one daemon for each home, spoken to over a unix socket.

Every program leads a process group and the whole group is killed with it. Nothing secret is
written: programs inherit the daemon's environment, and a spec holds only what is not a key.
"""

import fcntl
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tasks.backends.protocols import ProcessSpec, ProcessState
from tasks.home import Home

_CALL_TIMEOUT_S = 60
_RUNNING = {"RUNNING", "STARTING", "BACKOFF"}


class Supervisord:
    """The supervisor of `home`; implements `Processes`."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._socket = home.runtime / "supervisor.sock"
        self._folder = home.services / "supervisor"
        self._specs = self._folder / "programs"

    def start(self) -> None:
        """Start the daemon; nothing where it runs."""
        with self._alone():
            if self._answers():
                return
            self._socket.unlink(missing_ok=True)
            self._write_config()
            for spec in self._specs.glob("*.conf"):
                spec.unlink()  # of a machine that went down: what is wanted is asked for anew
            command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._config)]
            environment = {**os.environ, **self._home.environment()}
            subprocess.run(command, check=True, timeout=_CALL_TIMEOUT_S, env=environment)
            _wait_until(self._answers, 30, f"supervisord did not start; see {self._folder}")

    def shutdown(self, timeout_s: float = 60) -> None:
        """End all programs and the daemon; returns when no process of this home is left."""
        with self._alone():
            if self._answers():
                self._call("supervisor.shutdown")
                gone = f"supervisord does not end; see {self._folder}"
                _wait_until(lambda: not self._answers(), timeout_s, gone)
            _wait_until(lambda: not self._end_strays(), timeout_s, "processes of this home remain")
            self._socket.unlink(missing_ok=True)

    def ensure(self, spec: ProcessSpec) -> ProcessState:
        with self._alone():
            file = self._specs / f"{spec.name}.conf"
            known = self.state(spec.name)
            wanted = _program(spec)
            if known and file.is_file() and file.read_text() == wanted:
                if not known.running:
                    self._call("supervisor.startProcess", spec.name, False)
            else:
                self._forget(spec.name)
                spec.log.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(wanted)
                self._call("supervisor.reloadConfig")
                self._call("supervisor.addProcessGroup", spec.name)
            state = self.state(spec.name)
            assert state is not None
            return state

    def state(self, name: str) -> ProcessState | None:
        return next((state for state in self.states() if state.name == name), None)

    def states(self) -> list[ProcessState]:
        if not self._answers():
            return []
        return [
            ProcessState(
                name=info["name"],
                running=info["statename"] in _RUNNING,
                pid=info["pid"] or None,
                description=f"{info['statename'].lower()}: {info['description']}",
            )
            for info in self._call("supervisor.getAllProcessInfo")
        ]

    def remove(self, name: str) -> None:
        with self._alone():
            self._forget(name)

    def _forget(self, name: str) -> None:
        known = self.state(name)
        if known is None:
            return
        if known.running:
            self._call("supervisor.stopProcess", name, True)
        self._call("supervisor.removeProcessGroup", name)
        (self._specs / f"{name}.conf").unlink(missing_ok=True)
        self._call("supervisor.reloadConfig")

    @property
    def _config(self) -> Path:
        return self._folder / "supervisord.conf"

    def _write_config(self) -> None:
        self._specs.mkdir(parents=True, exist_ok=True)
        folder = _escape(str(self._folder))
        self._config.write_text(
            "[unix_http_server]\n"
            f"file={_escape(str(self._socket))}\nchmod=0700\n"
            "[supervisord]\n"
            f"logfile={folder}/supervisord.log\npidfile={folder}/supervisord.pid\n"
            f"childlogdir={folder}\nminfds=1024\numask=077\n"
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n"
            "[include]\n"
            f"files={_escape(str(self._specs))}/*.conf\n"
        )

    def _answers(self) -> bool:
        try:
            self._call("supervisor.getState")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def _call(self, method: str, *arguments: Any) -> Any:
        """One XML-RPC call over the socket."""
        with xmlrpc.client.ServerProxy("http://localhost", _UnixTransport(self._socket)) as server:
            return getattr(server, method)(*arguments)

    def _end_strays(self) -> list[int]:
        """Kill what carries this home in its environment, the caller's own line excepted."""
        family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        strays = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("ARIADNE_HOME") == str(self._home.path)
                if process.pid not in family and is_ours and process.status() != "zombie":
                    process.send_signal(signal.SIGKILL)
                    strays.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return strays

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One caller at a time, over all processes of this home."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = str(path)

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=_CALL_TIMEOUT_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(_CALL_TIMEOUT_S)
        connection.sock.connect(self._path)
        return connection


def _program(spec: ProcessSpec) -> str:
    """The program's section of supervisor's configuration, whose strings hold no double quote."""
    if '"' in "".join([*spec.command, *spec.environment.values()]):
        raise ValueError(f"process {spec.name}: a double quote cannot be handed to supervisord")
    quoted = ",".join(
        f'{name}="{_escape(value)}"' for name, value in sorted(spec.environment.items())
    )
    command = " ".join(_quote(word) for word in spec.command)
    return (
        f"[program:{spec.name}]\n"
        f"command={_escape(command)}\n"
        f"directory={_escape(str(spec.directory))}\n"
        f"environment={quoted}\n"
        f"autorestart={'true' if spec.restart else 'false'}\n"
        "startsecs=1\nstartretries=3\nstopasgroup=true\nkillasgroup=true\n"
        f"stopwaitsecs={spec.stop_timeout_s}\n"
        f"redirect_stderr=true\nstdout_logfile={_escape(str(spec.log))}\n"
        "stdout_logfile_maxbytes=50MB\nstdout_logfile_backups=2\n"
    )


def _quote(word: str) -> str:
    """A word for supervisor's command line, which is split as by a shell."""
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def _wait_until(holds: Any, timeout_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.1)
