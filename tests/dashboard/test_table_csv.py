"""Every table of every page is there as CSV: filtered as the page, whole, of what its reader may see, and harmless."""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from itertools import count

from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path as route

from controlplane.fleet.models import Worker, WorkerPool
from controlplane.tenants.models import Tenant
from dashboard.panels import workers
from dashboard.table_csv import offer_tables
from dashboard.views import tenants as view
from tests.dashboard import story
from tests.dashboard.people import html_of

PAGES = (
    "/", "/hits/", "/hotspots/", "/evictions/", "/workers/", "/workers/removal/", "/policies/",
    "/policies/effective/?pool=demo",
    "/isolation/", "/requests/", "/requests/req-0000000c/", "/checklist/", "/alerts/", "/audit/", "/templates/",
    "/tenants/",
    "/tenants/acme/", "/namespaces/acme/support/", "/reports/", "/webhooks/", "/account/", "/views/", "/notes/",
)  # fmt: skip
OF_THEIR_OWN = (
    "Entries",
    "Explained requests",
    "Violations",
    "Open findings",
    "Cohorts",
    "Hit against miss by prompt length",
)
"""Tables whose CSV has more than the page shows."""
LINK = re.compile(r'<span class="tools csv"><a href="(\?[^"]+)"')
REGION = re.compile(r'role="region" aria-label="([^"]+)">\s*<table')


def _rows(client: Client, address: str) -> list[list[str]]:
    answer = client.get(address)
    assert answer.status_code == 200 and answer["Content-Type"].startswith("text/csv"), address
    assert "attachment" in answer["Content-Disposition"]
    return list(csv.reader(io.StringIO(answer.content.decode(), newline="")))


def test_every_table_that_is_shown_is_offered_and_given(operator: Client, fleet: None) -> None:
    given = 0
    for path in PAGES:
        html = html_of(operator, path)
        links = {unescape(link) for link in LINK.findall(html)}
        for label in REGION.findall(html):
            address = next((link for link in links if link.endswith(f"csv={label.replace(' ', '+')}")), None)
            if label in OF_THEIR_OWN:
                assert ".csv" in html, path
                continue
            assert address, (path, label)
            rows = _rows(operator, path.partition("?")[0] + address)
            assert len(rows) >= 2 and len({len(row) for row in rows}) == 1, (path, label, rows[:3])
            given += 1
    assert given >= 12


def test_it_is_filtered_and_ordered_as_the_page_and_whole(operator: Client, db: None) -> None:
    slugs = [f"t{number:03}" for number in range(view.PAGE_ROWS + 9)]
    Tenant.objects.bulk_create(Tenant(slug=slug, name=slug) for slug in slugs)
    Tenant.objects.create(slug="other", name="=HYPERLINK(1)")
    rows = _rows(operator, "/tenants/?q=t0&sort=-tenant&csv=Tenants")
    assert [row[0].split()[0] for row in rows[1:]] == slugs[::-1]


def test_a_spreadsheet_cannot_be_made_to_run(operator: Client, db: None) -> None:
    story.make_fleet()
    operator.post(
        "/notes/", {"begins_at": "2026-11-30T10:00", "ends_at": "2026-11-30T11:00", "text": "=cmd|' /C calc'!A0"}
    )
    assert "'=cmd|' /C calc'!A0" in [cell for row in _rows(operator, "/notes/?csv=Notes") for cell in row]


def test_a_member_gets_the_own_rows_and_a_stranger_none(alice: Client) -> None:
    rows = _rows(alice, "/tenants/?csv=Tenants")
    assert len(rows) == 2 and rows[1][0].startswith("acme")
    assert alice.get("/workers/?csv=Workers").status_code == 403
    assert alice.get("/tenants/globex/?csv=Namespaces").status_code == 404
    assert Client().get("/tenants/?csv=Tenants").status_code == 302


def test_a_table_that_is_not_there_is_said_to_be_none(operator: Client, db: None) -> None:
    assert operator.get("/tenants/?csv=Nothing").status_code == 404


def test_a_table_beside_a_list_in_pages_is_given_once_though_it_changes(rf: RequestFactory) -> None:
    """Waiting deliveries go down while the file is made."""
    waiting = count(9, -1)

    def page(request: HttpRequest) -> HttpResponse:
        receivers = f"<table><tr><th>Name</th><th>Waiting</th></tr><tr><td>a</td><td>{next(waiting)}</td></tr></table>"
        number = int(request.GET["page"])
        deliveries = f"<table><tr><th>What</th></tr><tr><td>event {number}</td></tr></table>"
        following = f'<nav><a rel="next" href="?page={number + 1}">Older</a></nav>' if number < 3 else ""
        return HttpResponse(
            f'<div role="region" aria-label="Receivers">{receivers}</div>'
            f'<div role="region" aria-label="Deliveries">{deliveries}</div>{following}'
        )

    [pattern] = offer_tables([route("x/", page)])

    def rows(label: str) -> list[list[str]]:
        answer = pattern.callback(rf.get("/x/", {"csv": label}))
        return list(csv.reader(io.StringIO(answer.content.decode(), newline="")))

    assert rows("Receivers") == [["Name", "Waiting"], ["a", "9"]]
    assert rows("Deliveries") == [["What"], ["event 1"], ["event 2"], ["event 3"]]


def test_a_large_fleet_is_given_whole(operator: Client, db: None) -> None:
    story.make_fleet()
    pool = WorkerPool.objects.get(slug=story.POOL)
    Worker.objects.bulk_create(
        Worker(pool=pool, slug=f"x{number:03}", url=f"http://127.0.0.1:{30_000 + number}", facts={})
        for number in range(workers.PAGE_ROWS * 2)
    )
    names = [row[0] for row in _rows(operator, "/workers/?csv=Workers")[1:]]
    assert len(set(names)) == len(names) == Worker.objects.count()
