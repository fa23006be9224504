"""When a schedule is due: clocks that skip and repeat hours, outages, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.reports.cron import BadCron, check, due_until, following, in_words

DST = [
    # (what, expression, zone, after, the next due times in UTC)
    ("skipped 02:30 is due right after the gap", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00",
     ["2026-03-29T01:00", "2026-03-30T00:30"]),
    ("repeated 02:30 is due once", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00",
     ["2026-10-25T00:30", "2026-10-26T01:30"]),
    ("hourly goes on through the repeated hour", "0 * * * *", "Europe/Berlin", "2026-10-24T23:30",
     ["2026-10-25T00:00", "2026-10-25T01:00", "2026-10-25T02:00"]),
    ("hourly goes on through the gap", "0 * * * *", "Europe/Berlin", "2026-03-29T00:30",
     ["2026-03-29T01:00", "2026-03-29T02:00"]),
    ("08:00 stays 08:00 by the wall", "0 8 * * 1", "America/New_York", "2026-03-01T00:00",
     ["2026-03-02T13:00", "2026-03-09T12:00"]),
    ("a zone off by half an hour", "0 8 * * *", "Asia/Kolkata", "2026-05-01T00:00", ["2026-05-01T02:30"]),
    ("a day that only long months have", "0 0 31 * *", "UTC", "2026-04-01T00:00",
     ["2026-05-31T00:00", "2026-07-31T00:00"]),
    ("the last day of a month", "0 0 L * *", "UTC", "2026-02-01T00:00", ["2026-02-28T00:00", "2026-03-31T00:00"]),
    ("a leap day", "0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00"]),
]  # fmt: skip


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), [row[1:] for row in DST], ids=[r[0] for r in DST])
def test_it_is_due_by_the_clock_of_its_zone(expression: str, zone: str, after: str, expected: list[str]) -> None:
    found = following(expression, zone, after=_utc(after), count=len(expected))
    assert found == [_utc(text) for text in expected]


@pytest.mark.parametrize(
    ("expression", "zone", "words"),
    [
        ("*/5 * * * *", "UTC", "once an hour"), ("0 8 * *", "UTC", "Five fields"),
        ("0 8 * * * *", "UTC", "Five fields"),
        ("0 25 * * *", "UTC", "hour"), ("0 0 31 2 *", "UTC", "day-of-month"), ("x", "UTC", "Five fields"),
        ("0 8 * * 1", "Mars/Olympus", "IANA"), ("0 8 * * 1", "../etc/passwd", "IANA"), ("", "UTC", "Five fields"),
    ],
)  # fmt: skip
def test_it_refuses_with_words(expression: str, zone: str, words: str) -> None:
    with pytest.raises(BadCron, match=words):
        check(expression, zone)


def test_it_says_the_expression_in_words() -> None:
    assert in_words("0 8 * * 1") == "At 08:00 on Monday"


def test_after_an_outage_the_latest_is_due_and_the_earlier_ones_are_missed() -> None:
    due, missed = due_until("0 8 * * *", "UTC", first=_utc("2026-05-01T08:00"), now=_utc("2026-05-04T07:59"))
    assert due == _utc("2026-05-03T08:00")
    assert missed == [_utc("2026-05-01T08:00"), _utc("2026-05-02T08:00")]
    assert due_until("0 8 * * *", "UTC", first=_utc("2026-05-01T08:00"), now=_utc("2026-05-01T08:00"))[1] == []


def test_a_long_outage_is_noted_within_bounds() -> None:
    due, missed = due_until("0 * * * *", "UTC", first=_utc("2026-01-01T00:00"), now=_utc("2026-02-01T00:30"))
    assert due == _utc("2026-02-01T00:00") and len(missed) == 200 and missed[-1] == _utc("2026-01-31T23:00")
