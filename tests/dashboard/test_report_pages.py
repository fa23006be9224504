"""The pages of reports: schedules, their form, progress, the figures in place, files and links."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.reports import producing, services
from controlplane.reports.models import ReportRun, ReportSchedule, ReportShare

pytestmark = pytest.mark.django_db

ACTOR = "user:olga"
QUERIES_MAX = 12
FORM = {
    "slug": "weekly", "name": "Weekly capacity", "cron": "0 8 * * 1", "time_zone": "Europe/Berlin", "scope": "fleet",
    "subject": "", "range_days": "30", "formats": ["html", "json"], "recipients": "capacity@example.com\n",
    "gpu_hour_cost": "2,50", "currency": "eur", "enabled": "on",
}  # fmt: skip


def _schedule(slug: str = "weekly", **values: object) -> ReportSchedule:
    values = {"cron": "0 8 * * 1", "formats": ["html", "json"], **values}
    return services.create_schedule(actor=ACTOR, slug=slug, **values)


@pytest.fixture
def run(db: None) -> ReportRun:
    """Made, of whatever traffic the test told before."""
    run = services.run_now(_schedule(name="Weekly capacity").pk, actor=ACTOR)
    assert producing.make(run.pk) == "done"
    return ReportRun.objects.get(pk=run.pk)


def test_the_empty_page_says_what_to_do_next(operator: Client, viewer: Client) -> None:
    assert b"Schedule one" in operator.get("/reports/").content
    page = viewer.get("/reports/").content
    assert b"An operator can schedule one" in page and b"/reports/add/" not in page


def test_the_form_schedules_a_report(operator: Client) -> None:
    answer = operator.post("/reports/add/", FORM)
    assert answer.status_code == 302
    row = ReportSchedule.objects.get()
    assert (row.cron, row.time_zone, row.gpu_hour_cost, row.currency) == ("0 8 * * 1", "Europe/Berlin", 2.5, "EUR")
    assert row.recipients == [{"kind": "email", "to": "capacity@example.com"}] and row.formats == ["html", "json"]
    page = operator.get("/reports/").content.decode()
    assert "At 08:00 on Monday" in page and "Europe/Berlin" in page and "08:00:00 CE" in page


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("cron", "* * * * *", "At most once an hour."), ("time_zone", "Mars", "IANA"), ("range_days", "0", "1 and 365"),
     ("recipients", "nobody", "no e-mail address"), ("recipients", "webhook:none", "a webhook that exists"),
     ("subject", "ghost", "no such pool"), ("currency", "EURO", "three letters"),
     ("gpu_hour_cost", "x", "not a number"),
     ("formats", [], "Name at least one"), ("slug", "A b", "lower-case")],
)  # fmt: skip
def test_the_form_names_what_is_wrong_and_keeps_what_was_typed(
    operator: Client, field: str, value: object, words: str
) -> None:
    form = FORM | {field: value} | ({"scope": "pool"} if field == "subject" else {})
    answer = operator.post("/reports/add/", form)
    page = answer.content.decode()
    assert answer.status_code == 422 and words in page and "Weekly capacity" in page
    assert not ReportSchedule.objects.exists()


def test_a_change_by_another_person_is_not_overwritten(operator: Client) -> None:
    row = _schedule()
    form = {name: value for name, value in FORM.items() if name != "slug"} | {"revision": "1"}
    assert operator.post(f"/reports/{row.pk}/", form).status_code == 302
    assert operator.post(f"/reports/{row.pk}/", form | {"name": "Mine"}).status_code == 412
    row.refresh_from_db()
    assert row.name == "Weekly capacity" and row.revision == 2


def test_the_preview_shows_the_next_times_in_their_zone(operator: Client) -> None:
    page = operator.get("/reports/preview/?cron=30+2+*+*+*&time_zone=Asia/Tokyo").content.decode()
    assert page.count("<li>") == 5 and "02:30:00 JST" in page and "At 02:30 every day" in page
    assert "At most once an hour" in operator.get("/reports/preview/?cron=*+*+*+*+*").content.decode()


def test_run_now_leads_to_its_progress(operator: Client) -> None:
    row = _schedule()
    answer = operator.post(f"/reports/{row.pk}/run/")
    page = operator.get(answer["location"]).content.decode()
    assert "Simulated changes" in page and 'hx-trigger="every 1s"' in page and "Waits" in page
    ReportRun.objects.update(state="running", step="capacity", step_number=2)
    page = operator.get(answer["location"]).content.decode()
    assert page.count('data-state="done"') == 1 and page.count('aria-current="step"') == 1


def test_the_figures_stand_on_the_page_and_in_the_files(operator: Client, fleet: None, run: ReportRun) -> None:
    page = operator.get(f"/reports/runs/{run.pk}/").content.decode()
    assert "hx-trigger" not in page and "Caching served" in page and page.count("<svg class=") >= 2
    assert "style=" not in page.partition("<main")[2]
    html = operator.get(f"/reports/runs/{run.pk}/files/html/")
    assert html["content-security-policy"].startswith("default-src 'none'") and "inline" in html["content-disposition"]
    assert operator.get(f"/reports/runs/{run.pk}/files/json/").json()["scope"] == "fleet"
    assert operator.get(f"/reports/runs/{run.pk}/files/pdf/").status_code == 404


def test_a_link_is_shown_once_and_revoked_with_a_click(operator: Client, run: ReportRun) -> None:
    page = operator.post(f"/reports/runs/{run.pk}/share/", {"days": "7"}).content.decode()
    assert "/reports/shared/" in page
    assert "/reports/shared/" not in operator.get(f"/reports/runs/{run.pk}/").content.decode()
    share = ReportShare.objects.get()
    assert operator.post(f"/reports/runs/{run.pk}/unshare/{share.pk}/").status_code == 302
    share.refresh_from_db()
    assert share.revoked_at
    assert operator.post(f"/reports/runs/{run.pk}/nonsense/1/").status_code == 404


def test_removing_asks_for_the_id(operator: Client, run: ReportRun) -> None:
    address = f"/reports/{run.schedule_id}/delete/"
    assert b"Its 1 report," in operator.get(address).content
    assert operator.post(address, {"typed": "monthly"}).status_code == 422
    assert operator.post(address, {"typed": "weekly"}).status_code == 302
    assert not ReportRun.objects.exists()


@pytest.mark.parametrize("path", ["/reports/", "/reports/add/", "/reports/runs/{}/", "/reports/{}/"])
def test_each_page_stays_within_its_queries(operator: Client, run: ReportRun, path: str) -> None:
    for number in range(4):
        _schedule(f"more-{number}")
        services.run_now(_schedule(f"again-{number}").pk, actor=ACTOR)
    address = path.format(run.pk if "runs" in path else run.schedule_id)
    with CaptureQueriesContext(connection) as asked:
        assert operator.get(address).status_code == 200
    assert len(asked) <= QUERIES_MAX, [query["sql"][:90] for query in asked]
