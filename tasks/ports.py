"""Ports of this machine: which one a service takes, and who holds one that it cannot have."""

import os
import socket
from collections.abc import Collection, Iterable

import psutil

HOST = "127.0.0.1"


def choose(variable: str, preferred: Iterable[int], held: Collection[int] = ()) -> int:
    """The port that `variable` asks for, or the first free one of `preferred`, or any free one.

    `held` are ports that the caller holds itself and may go on using.

    Raises:
        ValueError: what was asked for is no port.
        RuntimeError: it is taken; names the holder and the ways out.
    """
    asked = os.environ.get(variable)
    if not asked:
        return (
            next((port for port in preferred if port in held or is_free(port)), None) or any_free()
        )
    if not asked.isdecimal() or not 1024 <= int(asked) <= 65535:
        raise ValueError(f"{variable} is {asked!r}; give a port from 1024 to 65535")
    if int(asked) not in held and not is_free(int(asked)):
        raise RuntimeError(
            f"port {asked} is taken by {holder(int(asked))}; stop it, set {variable} to another "
            "port, or leave it out to have a free one found"
        )
    return int(asked)


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        # Connections of an earlier server that are still closing are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def any_free() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def holder(port: int) -> str:
    """Who listens there, as far as this user may know."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if listens and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "another program"
