"""A report of a fleet that nobody has asked anything yet."""

from __future__ import annotations

import pytest

from tests.reports import seed
from tests.reports.conftest import made, schedule

pytestmark = pytest.mark.django_db


def test_a_report_without_any_figure_says_so(db) -> None:
    run = made(schedule())
    text = bytes(run.files.get(format="html").content).decode()
    assert "No router reported in this time" in text and "NaN" not in text and "None</" not in text
    assert run.figures["what_if"]["available"] is False and run.figures["recommendations"] == []


def test_a_time_before_that_was_hardly_reported_is_no_comparison(db) -> None:
    end = seed.full_hour()
    seed.make_fleet()
    seed.tell(end, days=3)
    young = made(schedule("young", formats=["json"], range_days=2)).figures
    grown = made(schedule("grown", formats=["json"], range_days=1)).figures
    assert young["summary"]["requests"] > 0 and young["before"]["requests"] is None
    assert grown["before"]["requests"] > 0
