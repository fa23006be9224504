"""The bar above every page: what it is narrowed to, which time it shows, and what that is compared with.

Everything in it is a link or a form that changes the URL; nothing needs a script.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dashboard.scope import COMPARISONS, NO_COMPARISON, RANGES, PageState

ZONES = (
    "UTC", "Europe/London", "Europe/Berlin", "Europe/Kyiv", "Asia/Dubai", "Asia/Kolkata", "Asia/Singapore",
    "Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney", "America/Sao_Paulo", "America/New_York", "America/Chicago",
    "America/Denver", "America/Los_Angeles",
)  # fmt: skip
"""Offered; any other IANA name can be typed."""
FILTERS = {"tenant": "Tenant", "ns": "Namespace", "model": "Model", "pool": "Pool", "worker": "Worker"}


@dataclass(frozen=True, slots=True)
class Choice:
    label: str
    query: str
    on: bool


@dataclass(frozen=True, slots=True)
class TopBar:
    crumbs: list[tuple[str, str]]
    """Words and query of each step of the scope: all › tenant › namespace › worker …"""
    ranges: list[Choice]
    custom: str
    """A range that is none of those offered, in words and local time; "" when one of them is on."""
    from_local: str
    to_local: str
    """Ends of the shown range as a form's field has them, in the page's zone."""
    comparisons: list[Choice]
    compared: str
    filters: list[tuple[str, str, str]]
    """(name, words, value) of each field of the scope."""
    zones: tuple[str, ...] = ZONES


def topbar_of(state: PageState, *, now: datetime) -> TopBar:
    scope = state.scope(now)
    ends = [at.astimezone(state.zone) for at in (scope.from_, scope.to)]
    return TopBar(
        crumbs=_crumbs(state),
        ranges=[
            Choice(label, state.query(from_=key, to=""), state.live and state.from_ == key)
            for key, label in RANGES.items()
        ],
        custom="" if state.live and state.from_ in RANGES else _span_words(state, *ends),
        from_local=ends[0].strftime("%Y-%m-%dT%H:%M:%S"),
        to_local=ends[1].strftime("%Y-%m-%dT%H:%M:%S"),
        comparisons=[
            *(Choice(words, state.query(cmp=key), state.cmp == key) for key, (words, _) in COMPARISONS.items()),
            Choice("nothing", state.query(cmp=NO_COMPARISON), not state.compares),
        ],
        compared=state.compared_words if state.compares else "nothing",
        filters=[(name, words, getattr(state, name)) for name, words in FILTERS.items()],
    )


def _span_words(state: PageState, begin: datetime, end: datetime) -> str:
    if state.live:
        return state.range_words
    same_day = begin.date() == end.date()
    return f"{begin:%d %b %H:%M} – {end:%H:%M}" if same_day else f"{begin:%d %b %H:%M} – {end:%d %b %H:%M}"


def _crumbs(state: PageState) -> list[tuple[str, str]]:
    crumbs = [("all", state.query(tenant="", ns="", model="", worker="", pool=""))]
    if state.tenant:
        crumbs.append((state.tenant, state.query(ns="", model="", worker="", pool="")))
    for name in ("ns", "pool", "model", "worker"):
        value = getattr(state, name)
        if value:
            crumbs.append((value, state.query()))
    return crumbs
