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


def register() -> None:
    register_converter(SlugId, "id")
    register_converter(PairId, "pair")
    register_converter(KeyId, "key")
    register_converter(ScopeId, "scope")
