"""Supervisor's configuration files, as pure functions of a home and a spec.

Its ini dialect has four traps: `%` expands, `%(here)s` expands even after `%%`, ` ;` and ` #`
begin a comment even inside quotes, and its `environment` key cannot hold every value. So a
program's environment goes through `leftovers`, as arguments: those are split by the shell's rules.
"""

import re
import shlex
import sys
from pathlib import Path

from tasks.backends import leftovers
from tasks.backends.protocols import ProcessSpec
from tasks.home import Home

_SECRETS = {"KEY", "KEYS", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS"}


def supervisor(home: Home, socket: Path, log: Path) -> str:
    """Supervisord's own file."""
    return f"""\
[unix_http_server]
file={_value(socket)}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisord]
logfile={_value(log)}
logfile_maxbytes=10MB
logfile_backups=2
pidfile={_value(home.runtime / "supervisord.pid")}
childlogdir={_value(home.logs)}
directory={_value(home.services)}
umask=077
silent=true

[include]
files={home.programs.name}/*.conf
"""


def program(spec: ProcessSpec) -> str:
    """One program's file; the same text exactly when the spec is the same.

    Raises:
        ValueError: the spec cannot be written down, or would write down a secret.
    """
    for variable in spec.environment:
        if _SECRETS.intersection(variable.upper().split("_")):
            raise ValueError(
                f"{spec.name}: {variable} would be written to a file; "
                "export it before `make up` instead, what runs inherits it"
            )
    keep = str(spec.restart).lower()
    # 12 tries, each a second later than the one before, are more than a minute for what it needs.
    return f"""\
[program:{spec.name}]
command={_command(spec)}
directory={_value(spec.directory)}
autostart={keep}
autorestart={keep}
startsecs={1 if spec.restart else 0}
startretries={12 if spec.restart else 0}
stopwaitsecs={spec.stop_timeout_s}
stopasgroup=true
killasgroup=true
umask=022
redirect_stderr=true
stdout_logfile={_value(spec.log)}
stdout_logfile_maxbytes=20MB
stdout_logfile_backups=2
"""


def _command(spec: ProcessSpec) -> str:
    assignments = [f"{name}={value}" for name, value in sorted(spec.environment.items())]
    words = [sys.executable, "-I", leftovers.__file__, *assignments, "--", *spec.command]
    # Two quotes inside a quoted word change nothing, but hide what has a meaning to the parser.
    line = re.sub(r"(\s)([;#])|(%)(\()", r"\1\3''\2\4", shlex.join(words))
    return _one_line(line).replace("%", "%%")


def _value(path: Path) -> str:
    text = _one_line(str(path))
    if text != text.strip() or re.search(r"\s[;#]|%\(", text):
        raise ValueError(f"{text!r} holds what supervisord cannot take in a path; rename it")
    return text.replace("%", "%%")


def _one_line(text: str) -> str:
    if re.search(r"[\n\r\0]", text):
        raise ValueError(f"{text!r} has a line break; supervisord cannot take one")
    return text
