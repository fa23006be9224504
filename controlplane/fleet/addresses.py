"""Which addresses Tidemark may be told to call (S17): form first, then every address a name resolves to.

A name is resolved once; the connection goes to the checked address, so a second answer of the resolver changes
nothing. Link-local, mapped, decimal, octal and userinfo forms are refused whatever the networks allow.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Sequence[str]]
"""(host, port) → addresses as text. Raises OSError when there are none."""

ADDRESSES_MAX = 16
"""A name with more addresses is refused rather than checked in part."""
URL_LENGTH_MAX = 300

_NUMBER_LIKE = re.compile(r"^(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*\.?$", re.IGNORECASE)
_NAME = re.compile(
    r"^(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*$"
)


class AddressRefused(ValueError):
    """The message says what is wrong with the address; it is fit for a form field."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL taken apart: `host` is a lower-case name or an address without brackets."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}"


@dataclass(frozen=True, slots=True)
class Pinned:
    """Where to connect (`url` names the checked address) and what to call it (`host_header`, `server_name`)."""

    url: str
    host_header: str
    server_name: str
    """For TLS: the name in the certificate."""


def parse_endpoint(text: str, *, schemes: Sequence[str], path_allowed: bool = False) -> Endpoint:
    """Checks the form alone: no resolver is asked. Raises AddressRefused."""
    if (
        not text
        or len(text) > URL_LENGTH_MAX
        or not text.isascii()
        or any(c == " " or not c.isprintable() for c in text)
    ):
        raise AddressRefused("Use plain ASCII without blanks, at most 300 characters.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise AddressRefused("This is not a URL with a port between 1 and 65535.") from error
    if parts.scheme not in schemes:
        raise AddressRefused(f"The scheme must be {' or '.join(schemes)}.")
    if "@" in parts.netloc:
        raise AddressRefused("User and password do not belong into the address.")
    if not port:
        raise AddressRefused("Name the port: host:port.")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise AddressRefused("Leave out query and fragment.")
    if parts.path not in ("", "/") and not path_allowed:
        raise AddressRefused("Leave out the path: only scheme, host and port.")
    return Endpoint(parts.scheme, _checked_host(parts.hostname or ""), port, parts.path if path_allowed else "")


def _checked_host(host: str) -> str:
    if ":" in host:
        return _literal(host)
    if _NUMBER_LIKE.match(host):
        # `2130706433`, `0177.0.0.1` and `127.1` mean loopback to some resolvers: only four plain decimals pass.
        return _literal(host)
    if not _NAME.match(host):
        raise AddressRefused("The host is neither a name nor an address.")
    return host


def _literal(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError as error:
        raise AddressRefused("Write addresses in full: 10.0.0.7 or [fd00::7].") from error


def resolve(endpoint: Endpoint, *, networks: Sequence[str], resolver: Resolver | None = None) -> str:
    """One address of the endpoint's host after every one of them passed. Blocks on the name service.

    Raises AddressRefused.
    """
    try:
        found = list(dict.fromkeys((resolver or system_resolver)(endpoint.host, endpoint.port)))
    except OSError as error:
        raise AddressRefused(f"The name {endpoint.host} does not resolve.") from error
    if not found or len(found) > ADDRESSES_MAX:
        raise AddressRefused(f"The name {endpoint.host} has {len(found)} addresses; 1 to {ADDRESSES_MAX} are accepted.")
    for address in found:
        check_address(address, networks=networks)
    return found[0]


def check_address(text: str, *, networks: Sequence[str]) -> None:
    """Raises AddressRefused unless `text` lies inside one of `networks` (CIDR) and is of no refused kind."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise AddressRefused(f"{text}: mapped and scoped addresses are not accepted.")
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        raise AddressRefused(f"{text}: link-local, multicast and unspecified addresses are not accepted.")
    if not any(address.version == network.version and address in network for network in _networks(tuple(networks))):
        raise AddressRefused(f"{text} is outside the allowed networks (TIDEMARK_WORKER_NETWORKS).")


@lru_cache(maxsize=8)
def _networks(texts: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(text) for text in texts]


def system_resolver(host: str, port: int) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def pin(endpoint: Endpoint, *, networks: Sequence[str], resolver: Resolver | None = None) -> Pinned:
    """Resolve once, check, and name the address to connect to. Raises AddressRefused."""
    address = resolve(endpoint, networks=networks, resolver=resolver)
    target = Endpoint(endpoint.scheme, address, endpoint.port, endpoint.path)
    return Pinned(url=target.url, host_header=endpoint.netloc, server_name=endpoint.host)


def check_http(text: str, *, networks: Sequence[str], path_allowed: bool = False) -> str:
    """The normal form of an http(s) address after form and networks were checked. Raises AddressRefused."""
    endpoint = parse_endpoint(text, schemes=("http", "https"), path_allowed=path_allowed)
    resolve(endpoint, networks=networks)
    return endpoint.url


def check_tcp(text: str, *, networks: Sequence[str]) -> str:
    """The normal form of a `tcp://host:port` endpoint. Raises AddressRefused."""
    endpoint = parse_endpoint(text, schemes=("tcp",))
    resolve(endpoint, networks=networks)
    return endpoint.url
