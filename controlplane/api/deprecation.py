"""What is to go: answers say since when and until when, and where the successor is (RFC 9745, RFC 8594).

    @deprecated(since=datetime(2027, 1, 1, tzinfo=UTC), sunset=datetime(2027, 8, 1, tzinfo=UTC), successor="https://…")
    class WatermarkList(ApiView): …

The schema marks every operation of such a view `deprecated`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.http import http_date

NOTICE = timedelta(days=180)
"""The least between the notice and the end."""


@dataclass(frozen=True, slots=True)
class Deprecation:
    since: datetime
    sunset: datetime
    """From then on the address may be gone."""
    successor: str = ""
    """Address of what takes its place, or of what to do."""

    def __post_init__(self) -> None:
        if self.since.tzinfo is None or self.sunset.tzinfo is None:
            raise ValueError("a deprecation needs aware times")
        if self.sunset - self.since < NOTICE:
            raise ValueError(f"between notice and end lie at least {NOTICE.days} days")

    def headers(self) -> dict[str, str]:
        """`Deprecation` is a structured date (RFC 9651): `@` and Unix seconds; `Sunset` is an HTTP date."""
        found = {"Deprecation": f"@{int(self.since.timestamp())}", "Sunset": http_date(self.sunset.timestamp())}
        if self.successor:
            found["Link"] = f'<{self.successor}>; rel="deprecation"'
        return found


def deprecated[View: type](*, since: datetime, sunset: datetime, successor: str = "") -> Callable[[View], View]:
    """A decorator of views. Raises ValueError for times that break the promise of docs/api.md."""
    told = Deprecation(since, sunset, successor)

    def mark(view: View) -> View:
        view.deprecation = told  # type: ignore[attr-defined]  # declared by ApiView
        return view

    return mark
