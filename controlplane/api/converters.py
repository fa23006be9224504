"""Ids in addresses, exactly as they are written everywhere else: `acme/support`, `llama-70b/w1`."""

from __future__ import annotations

from django.urls import register_converter

SLUG = r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?"


class _Text:
    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class SlugId(_Text):
    regex = SLUG


class PairId(_Text):
    """`<tenant>/<namespace>` or `<pool>/<worker>`."""

    regex = f"{SLUG}/{SLUG}"


class KeyId(_Text):
    regex = "[0-9a-z]{12}"


class ScopeId(_Text):
    """`global`, `pool:<pool>` or `namespace:<tenant>/<namespace>`."""

    regex = f"global|pool:{SLUG}|namespace:{SLUG}/{SLUG}"


class RequestId(_Text):
    """As routers make them, and as they take them from clients."""

    regex = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class RowId:
    """A row's number, within what a database can compare it with."""

    regex = "[0-9]{1,18}"

    def to_python(self, value: str) -> int:
        return int(value)

    def to_url(self, value: int) -> str:
        return str(value)


class FileForm(_Text):
    """How a list is exported."""

    regex = "csv|json"


class LogForm(_Text):
    """How the audit log is exported."""

    regex = "csv|jsonl"


IN_SCHEMA = {
    "id": {"type": "string", "pattern": f"^{SLUG}$"},
    "pair": {"type": "string", "example": "acme/support"},
    "scope": {"type": "string", "example": "namespace:acme/support"},
    "key": {"type": "string", "pattern": f"^{KeyId.regex}$"},
    "request": {"type": "string", "pattern": f"^{RequestId.regex}$"},
    "file": {"type": "string", "enum": FileForm.regex.split("|")},
    "log": {"type": "string", "enum": LogForm.regex.split("|")},
    "row": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
}
"""How the OpenAPI document describes them. No pattern where a slash may be: OpenAPI has no word for such arguments."""


def register() -> None:
    register_converter(SlugId, "id")
    register_converter(PairId, "pair")
    register_converter(KeyId, "key")
    register_converter(ScopeId, "scope")
    register_converter(RequestId, "request")
    register_converter(FileForm, "file")
    register_converter(LogForm, "log")
    register_converter(RowId, "row")
