"""Addresses inside content parts: a worker must not be sent to files or to the inside of the network for them."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from router.http.errors import BadRequest

_REFUSED = "A media URL must be https, http or data, and must not name an internal address."


def check_media_url(part: dict[str, Any], *, param: str = "messages") -> None:
    """Raises BadRequest when a non-text part names a file, another scheme or a non-public literal address."""
    for value in part.values():
        url = value.get("url") if type(value) is dict else value
        if (type(url) is str and "://" in url[:64]) or (type(url) is str and url[:5].lower() == "file:"):
            _check(url, param)


def _check(url: str, param: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise BadRequest(_REFUSED, param=param) from None
    if parts.scheme.lower() not in ("http", "https", "data") or parts.username is not None:
        raise BadRequest(_REFUSED, param=param)
    if parts.scheme.lower() != "data" and not _is_public(host):
        raise BadRequest(_REFUSED, param=param)


def _is_public(host: str) -> bool:
    host = host.rstrip(".").lower()
    if host in ("", "localhost") or host.endswith((".localhost", ".internal", ".local")):
        return False
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        # A name made of digits, dots and x is an address in disguise: decimal, octal or hexadecimal.
        return (
            not set(host) <= set("0123456789.xabcdef")
            or not any(c.isdigit() for c in host)
            or "." in host.strip("0123456789.")
        )
