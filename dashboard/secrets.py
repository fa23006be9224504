"""Keys and tokens that people paste where a name belongs: only their public part may stand in an address."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

SECRET = re.compile(r"\b(tmp?_[0-9A-Za-z]{12})_[A-Za-z0-9_-]{8,}")
"""A key `tm_<id>_<secret>` or token `tmp_<id>_<secret>`, also one of which the end is missing."""


def without_secrets(text: str) -> str:
    """The text with each key cut to its id."""
    return SECRET.sub(r"\1", text)


class AddressesWithoutSecrets:
    """Leads an address that holds a key to the same one without its secret, before anything reads or logs it.

    The browser keeps the second address alone in its history.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        address = _cut(request.path, request.META.get("QUERY_STRING", ""))
        if address is None:
            return self._get_response(request)
        return HttpResponseRedirect(address, preserve_request=request.method not in ("GET", "HEAD"))


def _cut(path: str, query: str) -> str | None:
    """The address without secrets; None when it holds none."""
    if not (SECRET.search(unquote(path)) or SECRET.search(unquote_plus(query))):
        return None
    pairs = [(name, without_secrets(value)) for name, value in parse_qsl(query, keep_blank_values=True)]
    # Two slashes in front would name another site.
    kept = re.sub("/{2,}", "/", quote(without_secrets(path), safe="/~:@!$&'()*+,;=-._"))
    return f"{kept}?{urlencode(pairs)}" if pairs else kept
