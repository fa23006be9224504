"""Are the ports free? Asked before anything starts, so that the answer is one message and not a crash loop."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Port:
    host: str
    port: int
    purpose: str
    variable: str
    """The environment variable that moves it."""


def taken(ports: list[Port]) -> list[str]:
    """One sentence for each port that cannot be bound; empty when all are free."""
    return [sentence for port in ports if (sentence := _complaint(port))]


def _complaint(port: Port) -> str:
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        # As the servers do: a connection in TIME_WAIT does not count, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.host, port.port))
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            return f"{port.host}:{port.port} ({port.purpose}) {why}; set {port.variable} to another port"
    return ""
