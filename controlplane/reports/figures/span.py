"""Of whom and of which time a report speaks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from controlplane.reports.models import ReportRun
from controlplane.reports.models import Scope as Kind
from controlplane.telemetry.windows import Scope, Segment, ceil_to, floor_to

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Subject:
    """The tenant comes first in every reading: a tenant's report is made of its own rows alone."""

    tenant: str
    pool: str
    from_: datetime
    to: datetime
    zone: ZoneInfo

    @classmethod
    def of(cls, run: ReportRun) -> Subject:
        scope, subject = run.settings["scope"], run.settings["subject"]
        return cls(
            tenant=subject if scope == Kind.TENANT else "",
            pool=subject if scope == Kind.POOL else "",
            from_=run.from_at,
            to=run.to_at,
            zone=ZoneInfo(run.settings["time_zone"]),
        )

    @property
    def scope(self) -> Scope:
        return Scope(from_=self.from_, to=self.to, tenant=self.tenant, pool=self.pool)

    @property
    def before(self) -> Subject:
        """The span of equal length that ends where this one begins."""
        return Subject(self.tenant, self.pool, self.from_ - (self.to - self.from_), self.from_, self.zone)

    @property
    def hours(self) -> Segment:
        """Rows of hours in the span; the hour that holds its end belongs to it as far as it has come."""
        return Segment(HOUR_S, floor_to(self.from_, HOUR_S), ceil_to(self.to, HOUR_S))

    def day_of(self, at: datetime) -> date:
        """The local day in which an hour begins."""
        return at.astimezone(self.zone).date()

    def days(self) -> list[date]:
        first, last = self.day_of(self.from_), self.day_of(self.to - timedelta(microseconds=1))
        return [first + timedelta(days=index) for index in range((last - first).days + 1)]

    def bounds(self, day: date) -> tuple[datetime, datetime]:
        """A local day in UTC: 23 to 25 hours."""
        begin, end = (datetime.combine(day + timedelta(days=n), time(), self.zone).astimezone(UTC) for n in (0, 1))
        return begin, end

    def is_whole(self, day: date) -> bool:
        """Whether all of the day lies in the span, up to the hour by which rows are summed."""
        begin, end = self.bounds(day)
        return ceil_to(begin, HOUR_S) >= floor_to(self.from_, HOUR_S) and floor_to(end, HOUR_S) <= self.to
