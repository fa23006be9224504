"""Addresses of the pages of what if."""

from __future__ import annotations

from django.urls import URLPattern, path

from dashboard.views import what_if

urlpatterns: list[URLPattern] = [
    path("what-if/", what_if.what_ifs, name="what-ifs"),
    path("what-if/ask/", what_if.what_if_ask, name="what-if-ask"),
    path("what-if/<int:what_if_id>/", what_if.what_if, name="what-if"),
    path("what-if/<int:what_if_id>.csv", what_if.what_if_csv, name="what-if-csv"),
    path("what-if/<int:what_if_id>/cancel/", what_if.what_if_cancel, name="what-if-cancel"),
]
