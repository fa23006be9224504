"""Policies: what a revision changed, a dry run before and after, a live roll-out, routing policies, overrides."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils.html import escape

from controlplane.policies.models import Rollout
from controlplane.policies.rows import find_row
from controlplane.policies.services import set_routing, set_watermark
from controlplane.rollouts.services import start_rollout
from controlplane.telemetry.ingest import apply_entries
from dashboard import fragments
from router.contract.telemetry import Candidate, DecisionSample, Shipment, encode_shipment
from tests.dashboard import story

pytestmark = pytest.mark.django_db
QUERIES_MAX = 12
OLGA = "user:olga"
POOL, ROUTING = "/policies/pool/demo/", "/policies/routing/pool/demo/"
FORM = {"low": "50", "high": "60", "dwell_s": "0", "revision": "0"}


def test_the_history_tells_what_each_revision_changed(operator: Client, fleet: None) -> None:
    set_watermark(actor=OLGA, scope="pool:demo", low=0.5, high=0.7)
    set_watermark(actor=OLGA, scope="pool:demo", low=0.5, high=0.8, reason="room")
    text = operator.get(POOL).content.decode()
    assert "High watermark 70.0 % → <b>80.0 %</b>" in text
    assert "/policies/revisions/watermark/pool:demo/2/" in text
    page = operator.get("/policies/revisions/watermark/pool:demo/2/").content.decode()
    assert "Against revision 1" in page and "room" in page
    assert re.search(r"High watermark</td>\s*<td class=\"num\">70.0 %</td>\s*<td class=\"num\">80.0 %</td>", page)
    assert page.count(">changed</span>") == 1 and "same" in page


def test_two_revisions_of_choice_are_compared(viewer: Client, fleet: None) -> None:
    for high in (0.7, 0.8, 0.9):
        set_watermark(actor=OLGA, scope="pool:demo", low=0.5, high=high)
    page = viewer.get("/policies/revisions/watermark/pool:demo/3/?against=1").content.decode()
    assert "Against revision 1" in page and "70.0 %" in page and "90.0 %" in page
    for missing in ("/policies/revisions/watermark/pool:demo/9/", "/policies/revisions/planet/pool:demo/1/",
                    "/policies/revisions/watermark/pool:none/1/"):  # fmt: skip
        assert viewer.get(missing).status_code == 404, missing


def test_an_override_is_listed_with_its_end(viewer: Client, fleet: None) -> None:
    until = story.utc_now() + timedelta(minutes=30)
    set_watermark(actor=OLGA, scope="pool:demo", low=0.5, high=0.7, expires_at=until)
    set_routing(actor=OLGA, scope="namespace:acme/support", values={"priority": 3}, expires_at=until)
    text = viewer.get("/policies/").content.decode()
    assert text.count("override until") == 2 and "Priority: 3" in text
    assert "stays" in text, "the global one has no end"


def test_lists_are_narrowed_by_the_tenant_and_say_what_they_leave_out(
    viewer: Client, fleet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scope in ("namespace:acme/support", "namespace:acme/search", "namespace:globex/agents"):
        set_watermark(actor=OLGA, scope=scope, low=0.5, high=0.7)
    text = viewer.get("/policies/?tenant=acme").content.decode().partition('id="panel-watermarks"')[2]
    assert "<td>namespace:acme/search</td>" in text and "<td>global</td>" in text and "globex/agents" not in text
    monkeypatch.setattr("dashboard.panels.policies.ROWS_MAX", 3)
    fragments.forget()
    text = viewer.get("/policies/").content.decode()
    assert "1 more: filter by tenant or pool." in text


def _record_decisions(now: datetime) -> None:
    """What a dry run can judge: all candidates with what the choice knew of them."""
    candidates = [
        Candidate(worker=worker, matched_tokens=512 * index, saved_ms=50.0 * index, queue_ms=5.0,
                  net_ms=50.0 * index - 5, outstanding=index, kv_use=0.2 * index, prefill_tokens_per_s=9000.0)
        for index, worker in enumerate(story.WORKERS)
    ]  # fmt: skip
    samples = [
        DecisionSample(
            at=now.timestamp() - 30, request_id=f"judged-{number}", tenant="acme", namespace="acme/support",
            pool=story.POOL, model=story.MODEL, policy_version=12, worker="demo/w4", reason="prefix", sentence="s",
            candidates=candidates, prompt_tokens=2048, predicted_prompt_tokens=2048, predicted_hit_tokens=1536,
        )
        for number in range(6)
    ]  # fmt: skip
    shipment = Shipment(source="router-5", boot="b", seq=1, at=now.timestamp() - 30, decisions=samples)
    assert not apply_entries([encode_shipment(shipment)], now=now).refused


def test_a_dry_run_shows_load_before_and_after(operator: Client, fleet: None, now: datetime) -> None:
    _record_decisions(now)
    text = operator.post(POOL, FORM | {"how": "preview", "minutes": "60"}).content.decode()
    assert 'id="dry-run"' in text and "Load of each worker" in text
    figure = re.search(r'id="chart-dry-run" data-figure="([^"]*)"', text)
    assert figure is not None
    shown = json.loads(figure[1].replace("&quot;", '"').replace("&#x27;", "'"))
    assert [trace["name"] for trace in shown["data"]] == ["In force", "Proposed"]
    assert set(shown["data"][0]["x"]) == set(story.WORKERS)
    assert "<td>demo/w2</td>" in text and "plotly" in text
    assert find_row("watermark", "pool:demo") is None


def test_a_roll_out_is_followed_live(operator: Client, fleet: None, now: datetime) -> None:
    answer = operator.post(POOL, FORM | {"how": "rollout", "reason": "less churn"})
    row = Rollout.objects.get()
    assert answer["Location"] == f"/policies/rollouts/{row.pk}/"
    text = operator.get(answer["Location"]).content.decode()
    assert 'data-page="staged"' in text and 'id="panel-rollout_one"' in text and "item=" in text
    assert f"{row.stages[0] * 100:.1f} %" in text and "No verdict yet" in text and "less churn" in text
    Rollout.objects.update(verdict={"sentence": "Nothing is certainly worse.", "candidate": {"requests": 250}})
    fragments.forget()
    polled = operator.get(f"/fragments/staged/?item={row.pk}").content.decode()
    assert "Nothing is certainly worse." in polled and "250" in polled
    assert "There is no such roll-out" in operator.get("/fragments/staged/?item=999").content.decode()
    assert "There is no such roll-out" in operator.get("/fragments/staged/?item=x").content.decode()


def _routing(client: Client, **changes: str) -> tuple[int, str]:
    answer = client.post(ROUTING, {"revision": "0", "spill_outstanding": "12"} | changes)
    return answer.status_code, answer.content.decode()


def test_a_routing_policy_is_set_overridden_and_cleared(operator: Client, fleet: None) -> None:
    shown = operator.get(ROUTING).content.decode()
    assert "No policy is set" in shown and "The settings say 16 requests" in shown
    assert _routing(operator, routing="ring", reason="a try")[0] == 302
    assert find_row("routing", "pool:demo").values == {"routing": "ring", "spill_outstanding": 12}
    assert _routing(operator)[0] == 412, "somebody set it meanwhile"
    assert _routing(operator, revision="1", spill_outstanding="20", ends_min="10")[0] == 302
    assert find_row("routing", "pool:demo").expires_at is not None
    text = operator.get(ROUTING).content.decode()
    assert "Spill at outstanding requests 12 requests → <b>20 requests</b>" in text and "Roll back to 1" in text
    assert _routing(operator, revision="2", how="rollback", to="1")[0] == 302
    assert find_row("routing", "pool:demo").values == {"routing": "ring", "spill_outstanding": 12}
    assert _routing(operator, revision="3", how="clear")[0] == 302
    assert find_row("routing", "pool:demo") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spill_outstanding": "0"}, "must be a whole number from 1"),
        ({"spill_outstanding": "many"}, "must be a whole number from 1"),
        ({"spill_outstanding": "2.5"}, "must be a whole number from 1"),
        ({"routing": "magic"}, "must be one of"),
        ({"spill_outstanding": ""}, "Set at least one of"),
        ({"ends_min": "0"}, "Minutes until the end"),
    ],
)
def test_a_routing_field_says_what_is_wrong(operator: Client, fleet: None, changes: dict[str, str], words: str) -> None:
    status, text = _routing(operator, **changes)
    assert status == 422 and escape(words) in text and find_row("routing", "pool:demo") is None


def test_a_namespaces_objective_is_tried_and_rolled_out(operator: Client, fleet: None) -> None:
    path = "/policies/routing/namespace/acme/support/"
    form = {"revision": "0", "ttft_slo_ms": "900", "shed_over_slo": "yes"}
    assert 'id="dry-run"' in operator.post(path, form | {"how": "preview"}).content.decode()
    assert find_row("routing", "namespace:acme/support") is None
    answer = operator.post(path, form | {"how": "rollout"})
    row = Rollout.objects.get()
    assert answer["Location"] == f"/policies/rollouts/{row.pk}/"
    assert row.values == {"shed_over_slo": True, "ttft_slo_ms": 900}
    assert path in operator.get(answer["Location"]).content.decode()


def test_a_viewer_reads_routing_policies_and_changes_none(viewer: Client, fleet: None) -> None:
    text = viewer.get(ROUTING).content.decode()
    assert "changing needs the operator role" in text and "Publish routing" not in text
    assert viewer.post(ROUTING, {"spill_outstanding": "3"}).status_code == 403
    for missing in ("/policies/routing/pool/none/", "/policies/routing/planet/mars/", "/policies/routing/global/x/"):
        assert viewer.get(missing).status_code == 404, missing


def test_pages_ask_little(operator: Client, fleet: None, django_assert_max_num_queries: object) -> None:
    set_watermark(actor=OLGA, scope="pool:demo", low=0.5, high=0.7)
    set_routing(actor=OLGA, scope="pool:demo", values={"spill_outstanding": 9})
    paths = ["/policies/", POOL, ROUTING, "/policies/effective/?pool=demo&ns=acme/support",
             "/policies/revisions/watermark/pool:demo/1/"]  # fmt: skip
    values = {"low": 0.4, "high": 0.5, "dwell_s": 0.0}
    for path in [*paths, ""]:
        if not path:
            begun = start_rollout(actor=OLGA, kind="watermark", scope="global", values=values)
        fragments.forget()
        with django_assert_max_num_queries(QUERIES_MAX):  # type: ignore[operator]
            text = operator.get(path or f"/policies/rollouts/{begun.pk}/").content.decode()
        assert "style=" not in text and "None" not in text and "NaN" not in text, path
