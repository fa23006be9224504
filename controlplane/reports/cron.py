"""When a schedule is due. Pure: no database, no clock.

Five cron fields in the schedule's own zone, read by cronsim as Debian's cron reads them: a time that the clock skips in
spring is due once, right after the gap; one that the clock repeats in autumn is due once where the hour is fixed, and
at each of its two moments where the hour is `*`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

FIELDS = 5
GAP_MIN = timedelta(hours=1)
"""A report reads up to a year of rollups: more often would only repeat itself."""
LOOKED_AT = 50
"""Due times whose distances are compared with it."""
MISSED_MAX = 200
"""Due times that an outage can leave behind and that are noted one by one."""


class BadCron(ValueError):
    """The message is fit for the person who typed it."""


def zone_named(name: str) -> ZoneInfo:
    """Raises BadCron for what is no IANA zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadCron("Use an IANA time zone, such as Europe/Berlin or UTC.") from None


def check(expression: str, zone: str) -> None:
    """Raises BadCron with what is wrong."""
    found = following(expression, zone, after=datetime(2026, 1, 1, tzinfo=UTC), count=LOOKED_AT)
    if not found:
        raise BadCron("It never comes.")
    if any(later - earlier < GAP_MIN for earlier, later in pairwise(found)):
        raise BadCron("At most once an hour.")


def following(expression: str, zone: str, *, after: datetime, count: int) -> list[datetime]:
    """The next due times in UTC, at most `count`. Raises BadCron."""
    try:
        times = CronSim(_five(expression), after.astimezone(zone_named(zone)))
        return [moment.astimezone(UTC) for moment in islice(times, count)]
    except CronSimError as error:
        raise BadCron(f"{error}. Five fields: minute, hour, day of month, month, day of week.") from None


def next_due(expression: str, zone: str, *, after: datetime) -> datetime | None:
    return next(iter(following(expression, zone, after=after, count=1)), None)


def due_until(expression: str, zone: str, *, first: datetime, now: datetime) -> tuple[datetime, list[datetime]]:
    """The latest due time at or before `now`, and the earlier ones from `first` on, the last MISSED_MAX of them.

    `first` is due itself, and not after `now`.
    """
    reached = [first]
    times = CronSim(_five(expression), first.astimezone(zone_named(zone)))
    for moment in times:
        at = moment.astimezone(UTC)
        if at > now:
            break
        reached = [*reached[-MISSED_MAX:], at]
    return reached[-1], reached[:-1]


def in_words(expression: str) -> str:
    """ "At 08:00 on Monday". Raises BadCron."""
    try:
        return str(CronSim(_five(expression), datetime(2026, 1, 1, tzinfo=UTC)).explain())
    except CronSimError as error:
        raise BadCron(f"{error}.") from None


def _five(expression: str) -> str:
    """cronsim also takes a sixth field for seconds."""
    if len(expression.split()) != FIELDS:
        raise BadCron("Five fields: minute, hour, day of month, month, day of week.")
    return expression
