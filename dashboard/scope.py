"""What a page shows, read from its URL and written back to it.

The query is `?from=&to=&tenant=&ns=&model=&worker=&pool=&cmp=&tz=&m=` and, on pages with a list,
`&q=&only=&sort=&page=`; see PageState.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import HttpRequest

from controlplane.telemetry.figures import HEAT_MEASURES
from controlplane.telemetry.windows import RETENTION_S, Scope
from dashboard.secrets import without_secrets

RANGES = {"-15m": "15 min", "-1h": "1 h", "-6h": "6 h", "-24h": "24 h", "-7d": "7 d"}
"""Offered spans that end now; any other `-<number><s|m|h|d>` or ISO time is understood too."""

COMPARISONS = {
    "": ("period before", None),
    "day": ("same time yesterday", timedelta(days=1)),
    "week": ("same time last week", timedelta(days=7)),
}
"""`cmp` → words, and how much earlier the compared span lies; None = right before the shown one."""
NO_COMPARISON = "none"

DEFAULT_RANGE = "-15m"
DEFAULT_MEASURE = "kv_use"
TEXT_MAX = 200
SPAN_MIN = timedelta(seconds=60)
SPAN_MAX = timedelta(seconds=max(RETENTION_S.values()))

OF_ONE_PAGE = ("q", "only", "sort", "page", "item", "at", "a", "b")
"""What links to other pages leave out."""
_TEXTS = ("tenant", "ns", "model", "worker", "pool", *OF_ONE_PAGE)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RELATIVE = re.compile(r"-(\d{1,6})([smhd])")


@dataclass(frozen=True, slots=True)
class PageState:
    """Normalised query of a page. Equal states show the same, so they share one rendering."""

    from_: str = DEFAULT_RANGE
    to: str = ""
    """ISO time; empty = now, and the page is live."""
    tenant: str = ""
    ns: str = ""
    model: str = ""
    worker: str = ""
    pool: str = ""
    cmp: str = ""
    """What the figures are compared with: a key of COMPARISONS, or `none`."""
    tz: str = "UTC"
    m: str = DEFAULT_MEASURE
    q: str = ""
    """Text that the page's list is searched for."""
    only: str = ""
    """Kind of rows that the list is narrowed to."""
    sort: str = ""
    """Column that the list is sorted by; `-` before it = largest first."""
    page: str = ""
    """Page of the list, from 1."""
    item: str = ""
    """The one thing that the page is about, as its address names it."""
    at: str = ""
    """Moment of the change that is looked at: ISO time, of the page's zone where it names none."""
    a: str = ""
    """One side of a comparison: a name, or several with commas between."""
    b: str = ""
    notice: str = ""
    """What in the query was not understood, in words; not part of the URL."""

    @property
    def live(self) -> bool:
        return not self.to

    @property
    def compares(self) -> bool:
        return self.cmp != NO_COMPARISON

    @property
    def compared_by(self) -> timedelta | None:
        """How much earlier the compared span lies; None = right before."""
        return COMPARISONS.get(self.cmp, COMPARISONS[""])[1]

    @property
    def compared_words(self) -> str:
        return COMPARISONS.get(self.cmp, COMPARISONS[""])[0]

    @property
    def zone(self) -> ZoneInfo:
        return zone_of(self.tz) or ZoneInfo("UTC")

    def query(self, **changes: str) -> str:
        """The query string, with `changes` applied; what is at its default is left out."""
        state = replace(self, **changes)
        pairs = {
            field.name.rstrip("_"): getattr(state, field.name)
            for field in fields(state)
            if field.name not in ("notice", "tz") and getattr(state, field.name) != field.default
        }
        pairs["tz"] = state.tz
        return urlencode(pairs)

    def across(self) -> str:
        """The query string for links to other pages: without what only this page's list knows."""
        return self.query(**dict.fromkeys(OF_ONE_PAGE, ""))

    @property
    def page_number(self) -> int:
        return int(self.page) if self.page.isascii() and self.page.isdigit() and len(self.page) <= 6 else 1

    def scope(self, now: datetime) -> Scope:
        """The selectors' scope at `now`; its ends were checked when the query was read."""
        to = datetime.fromisoformat(self.to) if self.to else now
        return Scope(
            from_=_moment(self.from_, to) or to - timedelta(minutes=15),
            to=to,
            tenant=self.tenant,
            namespace=self.ns,
            model=self.model,
            worker=self.worker,
            pool=self.pool,
        )

    @property
    def range_words(self) -> str:
        if self.live:
            known = RANGES.get(self.from_)
            return f"last {known}" if known else f"since {self.from_}"
        return f"{self.from_} to {self.to}"


def state_of(request: HttpRequest, *, now: datetime) -> PageState:
    """The state of a request: its query, then the user's and the browser's time zone."""
    preferred = (
        request.GET.get("tz", ""),
        getattr(request.user, "time_zone", ""),
        request.COOKIES.get("tz", ""),
        settings.CONFIG.time_zone,
    )
    return read_state(request.GET, now=now, zones=preferred)


def read_state(query: Mapping[str, str], *, now: datetime, zones: tuple[str, ...] = ()) -> PageState:
    """A state from a query. Never raises: what is not understood is replaced by the default and named in `notice`."""
    notices: list[str] = []
    # No database stores a NUL, and PostgreSQL refuses to look for one.
    text = {name: without_secrets(query.get(name, "").replace("\x00", "").strip())[:TEXT_MAX] for name in _TEXTS}
    tz = next((name for name in (*zones, query.get("tz", "")) if name and zone_of(name)), "UTC")
    if query.get("tz") and not zone_of(query["tz"]):
        notices.append(f"There is no such time zone; times are shown in {tz}.")
    from_, to = _read_span(query.get("from", ""), query.get("to", ""), now, zone_of(tz) or ZoneInfo("UTC"), notices)
    measure = query.get("m", "") or DEFAULT_MEASURE
    if measure not in HEAT_MEASURES:
        notices.append("The heat map has no such measure.")
        measure = DEFAULT_MEASURE
    return PageState(
        from_=from_,
        to=to,
        **text,
        cmp=query.get("cmp", "") if query.get("cmp") in (*COMPARISONS, NO_COMPARISON) else "",
        tz=tz,
        m=measure,
        notice=" ".join(notices),
    )


def _read_span(from_: str, to: str, now: datetime, zone: ZoneInfo, notices: list[str]) -> tuple[str, str]:
    end = _moment(to, now, zone) if to else now
    begin = _moment(from_ or DEFAULT_RANGE, end, zone) if end else None
    if end is None or begin is None or not SPAN_MIN <= end - begin <= SPAN_MAX or begin >= now:
        notices.append("The time range is not understood; the last 15 min are shown.")
        return DEFAULT_RANGE, ""
    relative = _RELATIVE.fullmatch(from_ or DEFAULT_RANGE)
    return (from_ or DEFAULT_RANGE) if relative else _iso(begin), _iso(end) if to else ""


def _moment(text: str, end: datetime, zone: tzinfo = UTC) -> datetime | None:
    """`-15m` before `end`, or an ISO time (of the page's zone where it names none), or None."""
    relative = _RELATIVE.fullmatch(text)
    try:
        if relative:
            return end - timedelta(seconds=int(relative[1]) * _UNIT_S[relative[2]])
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def moment_of(text: str, zone: tzinfo) -> datetime | None:
    """A form's time in the page's zone, or None for what is none."""
    return None if _RELATIVE.fullmatch(text) else _moment(text, datetime.now(UTC), zone)


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo | None:
    """The time zone of an IANA name, or None. Names with dots are refused before they reach a path."""
    if not re.fullmatch(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+){0,2}", name):
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
