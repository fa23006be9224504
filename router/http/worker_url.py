"""Worker addresses (S17): `http://host:port` and nothing else, resolved once, never link-local or disguised."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

_URL: Final = re.compile(r"http://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})/?")
_DISGUISED: Final = re.compile(r"(?:0[xX][0-9A-Fa-f]+|[0-9]+)(?:\.(?:0[xX][0-9A-Fa-f]+|[0-9]+)){0,3}\.?")
"""What old resolvers read as an IPv4 address: decimal, octal or hexadecimal parts."""


class WorkerUrlError(ValueError):
    """The URL of a worker is not one a router connects to."""


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    host: str
    """IP literal, or a name to resolve once."""
    port: int
    is_literal: bool


def parse_worker_url(url: str) -> WorkerAddress:
    """Raises WorkerUrlError."""
    found = _URL.fullmatch(url)
    if not found or not 0 < int(found["port"]) <= 65535:
        raise WorkerUrlError("a worker URL has the form http://host:port")
    host = found["host"].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if ":" in host or _DISGUISED.fullmatch(host):
            raise WorkerUrlError("the worker's address is not in a plain form") from None
        return WorkerAddress(host, int(found["port"]), is_literal=False)
    check_address(host)
    return WorkerAddress(host, int(found["port"]), is_literal=True)


def check_address(address: str) -> None:
    """Raises WorkerUrlError for addresses no worker can have: link-local, mapped, unspecified, multicast."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None
    if ip.is_link_local or ip.is_unspecified or ip.is_multicast or mapped:
        raise WorkerUrlError("the worker's address is link-local, mapped, unspecified or multicast")
