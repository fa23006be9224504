"""The bell stands on every page, counts what its reader may see, and is asked for again where no socket pushes it."""

from __future__ import annotations

from django.test import Client
from django.utils import timezone

from controlplane.alerts.models import Alert, EvaluationClock
from dashboard import fragments
from tests.dashboard.people import html_of

FIXED = "/?from=-1h&to=2026-01-01T00:00:00Z"
PUSHED = ("/", "/workers/", "/alerts/")
POLLED = (
    "/tenants/",
    "/requests/",
    "/audit/",
    "/account/",
    "/search/",
    "/onboarding/",
    "/?from=-1h&to=2026-01-01T00:00:00Z",
)


def _fires(tenant: str, severity: str = "critical") -> None:
    now = timezone.now()
    EvaluationClock.objects.update_or_create(id=EvaluationClock.ONLY_ID, defaults={"at": now})
    Alert.objects.create(
        rule_slug="r", name="R", subject=tenant or "w", measure="violations", tenant=tenant, severity=severity,
        state=Alert.State.FIRING, since=now,
    )  # fmt: skip
    fragments.forget()


def test_every_page_has_it_as_a_link_with_the_count(operator: Client, short_fleet: None) -> None:
    _fires("acme")
    _fires("")
    for path in PUSHED + POLLED:
        html = html_of(operator, path)
        assert html.count('id="panel-alerts"') == 1, path
        assert "2 critical" in html and 'href="/alerts/?' in html, path
        assert ("data-polled" in html) == (path in POLLED), path


def test_the_poll_gives_the_bell_alone_and_is_never_kept(operator: Client, short_fleet: None) -> None:
    _fires("", "warning")
    answer = operator.get("/bell/?tz=UTC")
    assert answer.content.decode().startswith("<section") and "1 warning<" in answer.content.decode()
    assert "no-store" in answer.headers["Cache-Control"]


def test_a_member_hears_the_alerts_of_the_own_tenant_alone(bob: Client) -> None:
    _fires("globex")
    _fires("")
    assert "no alerts" in html_of(bob, "/tenants/")
    _fires("acme", "warning")
    assert "1 warning<" in html_of(bob, "/hits/?tenant=acme")
