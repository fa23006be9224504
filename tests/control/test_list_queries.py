"""List pages ask the database the same few questions however much there is."""

from __future__ import annotations

import pytest
from django.urls import URLPattern

from benchmarks.control_scale import API_LISTS, QUERIES_MAX, fill, measure_pages
from controlplane.api import urls

pytestmark = pytest.mark.django_db
NO_LISTS = {
    "api-schema", "api-docs", "api-my-access", "api-my-tokens", "api-snapshot-current", "api-effective-policy",
    "api-prefix-breakers", "api-alerts",
}  # fmt: skip
"""Addresses to read without an id that are one object, or are not kept in the database."""


def test_every_list_page_takes_few_queries() -> None:
    fill(60, 2, 60)
    measure_pages()  # once without counting: what a process asks but once
    costly = {page.path: page.queries for page in measure_pages("again") if page.queries > QUERIES_MAX}
    assert not costly


def test_no_list_is_left_out() -> None:
    lists = {
        str(pattern.pattern).removeprefix("v1/")
        for pattern in urls.urlpatterns
        if isinstance(pattern, URLPattern) and "<" not in str(pattern.pattern) and pattern.name not in NO_LISTS
        and hasattr(getattr(pattern.callback, "view_class", None), "get")  # type: ignore[attr-defined]
    }  # fmt: skip
    assert lists == set(API_LISTS)
