"""Alert rules, report schedules and webhooks move with the file; a webhook's address and secret stay sealed."""

from __future__ import annotations

import re

import pytest

from controlplane.alerts.models import AlertRule
from controlplane.audit.models import AuditEntry
from controlplane.declarative.services import apply, export
from controlplane.errors import Conflict, Invalid
from controlplane.reports.models import ReportSchedule
from controlplane.webhooks.models import Subscription
from controlplane.webhooks.services import unsealed, update_subscription
from tests.declarative.conftest import empty_the_database

ACTOR = "system:apply olga"
RULE = """apiVersion: tidemark/v1
kind: AlertRule
metadata: {{name: waits, managed-by: github/fleet}}
spec: {{name: Waits, measure: {measure}, comparison: above, threshold: 0.5}}
"""
KEPT = """apiVersion: tidemark/v1
kind: Pool
metadata: {{name: llama, managed-by: {manager}}}
spec: {{name: llama, models: [m1, m2], block_size: 32, prefill_tokens_per_s: 9000.0}}
"""


@pytest.mark.django_db(transaction=True)
def test_an_installation_that_moves_signs_as_before(fleet) -> None:
    before = unsealed(Subscription.objects.get(slug="pager"))
    text = export(with_secrets=True)
    assert before.secret not in text and "token-4711" not in text
    empty_the_database()
    apply(text, file="fleet.yaml", actor=ACTOR)
    assert unsealed(Subscription.objects.get(slug="pager")) == before
    rule, schedule = AlertRule.objects.get(slug="acme-hits"), ReportSchedule.objects.get(slug="weekly")
    assert (rule.clear_at, rule.tenant, rule.runbook) == (0.6, "acme", "Look at\nHit tokens.")
    assert [item["to"] for item in schedule.recipients] == ["alice@acme.example", "pager"]
    assert schedule.next_due_at is not None


def test_a_plain_file_holds_no_webhook_and_makes_none(fleet) -> None:
    assert "kind: Webhook" not in export()
    made = "apiVersion: tidemark/v1\nkind: Webhook\nmetadata: {name: x}\nspec: {origin: 'https://a.example'}\n"
    with pytest.raises(Invalid, match="in no plain file"):
        apply(made, file="f.yaml", actor=ACTOR)


def test_a_fault_of_a_rule_is_told_with_its_line(fleet) -> None:
    with pytest.raises(Invalid, match=r"^f\.yaml:4: AlertRule waits: measure"):
        apply(RULE.format(measure="moon_phase"), file="f.yaml", actor=ACTOR)


def test_what_a_file_manages_is_not_edited_by_hand_and_is_pruned(fleet) -> None:
    from controlplane.alerts.services import update_rule

    apply(RULE.format(measure="hit_share"), file="f.yaml", actor=ACTOR)
    with pytest.raises(Conflict, match="github/fleet"):
        update_rule("waits", actor="user:alice", threshold=0.7)
    kept = (
        "apiVersion: tidemark/v1\nkind: Tenant\nmetadata: {name: acme, managed-by: github/fleet}\nspec: {name: Acme}\n"
    )
    apply(kept, file="f.yaml", actor=ACTOR, prune=True)
    assert not AlertRule.objects.filter(slug="waits").exists()


def test_pruning_switches_off_what_has_a_history(fleet) -> None:
    text = export(with_secrets=True)
    managed = re.sub(r"^  name: (pager|weekly)$", r"  managed-by: gh\n  name: \1", text, flags=re.MULTILINE)
    assert managed.count("managed-by: gh") == 2
    apply(managed, file="f.yaml", actor=ACTOR)
    for _ in range(2):
        apply(KEPT.format(manager="gh"), file="f.yaml", actor=ACTOR, prune=True)
    assert not Subscription.objects.get(slug="pager").enabled
    assert not ReportSchedule.objects.get(slug="weekly").enabled
    assert AuditEntry.objects.filter(object_id="pager", action="webhook.update").count() == 1


def test_a_webhook_of_another_fleet_key_is_left_out(fleet) -> None:
    update_subscription("pager", actor="user:alice", enabled=False)
    Subscription.objects.filter(slug="pager").update(sealed="of another key")
    assert "kind: Webhook" not in export(with_secrets=True)
