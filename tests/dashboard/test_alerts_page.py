"""The Alerts page: what goes on, silencing and acknowledging, the rule editor with its preview, what tenants see."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.alerts.models import Alert, AlertRule, Silence
from controlplane.tenants.models import Membership, Tenant
from tests.dashboard import alerts_story, story

pytestmark = pytest.mark.django_db
QUERIES_MAX = 12
RULE = {
    "name": "Slow", "slug": "slow", "measure": "ttft_p95_ms", "comparison": "above", "threshold": "300",
    "clear_at": "250", "window_min": "5", "for_min": "1", "on_unknown": "show", "severity": "warning", "tenant": "",
    "pool": "", "runbook": "1. Look.\r\n2. Act.", "runbook_url": "", "enabled": "on",
}  # fmt: skip


@pytest.fixture
def told(fleet: None, now: datetime) -> None:
    alerts_story.tell(now)


@pytest.fixture
def alice(told: None) -> Client:
    """Of acme alone."""
    user = story.make_user("alice", role="")
    Membership.objects.create(user=user, role="viewer", tenant=Tenant.objects.get(slug="acme"))
    client = Client()
    client.force_login(user)
    return client


def _open(slug: str) -> Alert:
    return Alert.objects.get(rule_slug=slug, resolved_at=None)


def test_it_lists_what_goes_on_gravest_first_and_the_bell_counts_it(told: None, viewer: Client) -> None:
    html = viewer.get("/alerts/").content.decode()
    panel = html.partition('id="panel-alerts_open"')[2].partition("</section>")[0]
    places = [panel.index(f"</svg>{word}</span>") for word in ("Firing", "Silenced", "Pending", "Unknown")]
    assert places == sorted(places)
    assert "TTFT slow" in panel and "above 300 ms" in panel and "demo/w1" in panel
    assert "Its team mends the template." in panel
    critical = Alert.objects.filter(state="firing", severity="critical", acknowledged_at=None).count()
    assert critical and f"{critical} critical" in html.partition('id="panel-alerts"')[2].partition("</section>")[0]
    assert "alert-act" not in html, "a viewer has no levers"


@pytest.mark.parametrize("only", ["firing", "pending", "silenced", "unknown"])
def test_it_can_be_narrowed_to_one_state(told: None, viewer: Client, only: str) -> None:
    html = viewer.get(f"/alerts/?only={only}").content.decode()
    panel = html.partition('id="panel-alerts_open"')[2].partition("</section>")[0]
    words = {"firing", "pending", "silenced", "unknown"}
    assert {word for word in words if f"</svg>{word.title()}</span>" in panel} == {only}


def test_the_bell_says_when_nothing_was_evaluated(fleet: None, viewer: Client) -> None:
    html = viewer.get("/alerts/").content.decode()
    assert "alerts unknown" in html and "Rules were never evaluated" in html


def test_one_click_silences_and_another_ends_it(told: None, operator: Client) -> None:
    alert = _open("ttft-slow")
    answer = operator.post("/alerts/act/", {"silence": f"{alert.pk}:1h"}, follow=True)
    assert "is silenced for 1 h" in answer.content.decode()
    silence = Silence.objects.get(rule_slug="ttft-slow")
    assert silence.subject == "fleet" and silence.created_by == "user:olga"
    operator.post(f"/alerts/silences/{silence.pk}/end/")
    silence.refresh_from_db()
    assert silence.ended_by == "user:olga"


def test_acknowledging_needs_a_reason(told: None, operator: Client) -> None:
    alert = _open("ttft-slow")
    refused = operator.post("/alerts/act/", {"acknowledge": str(alert.pk)}, follow=True)
    assert "Say why" in refused.content.decode()
    operator.post("/alerts/act/", {"acknowledge": str(alert.pk), "reason": "Looking.", "from": str(alert.pk)})
    page = operator.get(f"/alerts/{alert.pk}/").content.decode()
    assert "olga" in page and "Looking." in page and "Fleet page: waiting requests" in page


def test_a_rule_is_tried_then_added_then_changed_then_removed(told: None, operator: Client) -> None:
    tried = operator.post("/alerts/add/", RULE | {"how": "preview"}).content.decode()
    assert "In the last 24 h it would have fired 1 time." in tried and "TTFT p95 above" not in tried
    assert not AlertRule.objects.filter(slug="slow").exists()
    operator.post("/alerts/add/", RULE | {"how": "save"})
    rule = AlertRule.objects.get(slug="slow")
    assert (rule.threshold, rule.window_s, rule.for_s, rule.runbook) == (300, 300, 60, "1. Look.\n2. Act.")
    share = RULE | {"measure": "hit_share", "comparison": "below", "threshold": "20", "clear_at": "25", "revision": "1"}
    operator.post("/alerts/rules/slow/", share | {"how": "save"})
    rule.refresh_from_db()
    assert (rule.threshold, rule.clear_at, rule.revision) == (0.2, 0.25, 2)
    shown = operator.get("/alerts/rules/slow/").content.decode()
    assert 'value="20"' in shown and 'value="25"' in shown
    stale = operator.post("/alerts/rules/slow/", share | {"how": "save"})
    assert stale.status_code == 412 and "Load the current values" in stale.content.decode()
    operator.post("/alerts/rules/slow/", RULE | {"how": "delete", "revision": "2"})
    assert not AlertRule.objects.filter(slug="slow").exists()


def test_faults_stand_beside_their_fields_and_nothing_typed_is_lost(told: None, operator: Client) -> None:
    answer = operator.post("/alerts/add/", RULE | {"how": "save", "threshold": "much", "name": "Kept"})
    html = answer.content.decode()
    assert answer.status_code == 422 and "Type a number." in html and 'value="Kept"' in html
    wrong = operator.post("/alerts/add/", RULE | {"how": "save", "measure": "hit_share", "threshold": "300"})
    assert "A share lies between 0 and 1." in wrong.content.decode()


def test_a_viewer_may_try_but_not_save(told: None, viewer: Client) -> None:
    form = RULE | {"revision": "2"}
    assert viewer.post("/alerts/rules/ttft-slow/", form | {"how": "preview"}).status_code == 200
    assert viewer.post("/alerts/rules/ttft-slow/", form | {"how": "save"}).status_code == 403
    assert viewer.post("/alerts/rules/ttft-slow/", form | {"how": "delete"}).status_code == 403
    assert viewer.get("/alerts/add/").status_code == 403


def test_the_history_keeps_what_ended(told: None, viewer: Client) -> None:
    html = viewer.get("/alerts/?only=history").content.decode()
    assert "Goodput low" in html.partition('id="alert-history"')[2].partition("</section>")[0]


def test_a_tenants_member_sees_the_tenants_alerts_alone(alice: Client) -> None:
    html = alice.get("/alerts/").content.decode()
    assert "Hits of acme" in html
    for foreign in ("demo/w", "TTFT slow", "power supply", "critical", "globex"):
        assert foreign not in html.replace("Ctrl", ""), foreign
    assert alice.get(f"/alerts/{_open('ttft-slow').pk}/").status_code == 404
    assert alice.get("/alerts/rules/ttft-slow/").status_code == 404
    assert alice.get(f"/alerts/{_open('acme-hits').pk}/").status_code == 200
    assert alice.get("/alerts/?tenant=globex").status_code == 404


def test_it_asks_few_queries(told: None, viewer: Client) -> None:
    paths = ["/alerts/", "/alerts/?only=history", f"/alerts/{_open('ttft-slow').pk}/", "/alerts/rules/ttft-slow/"]
    for path in paths:
        with CaptureQueriesContext(connection) as asked:
            assert viewer.get(path).status_code == 200
        assert len(asked) <= QUERIES_MAX, (path, len(asked))
