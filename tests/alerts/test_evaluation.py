"""Ticks over stored figures: each moment once, held for a while, silenced, told."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from controlplane.alerts import evaluation
from controlplane.alerts.evaluation import TICK_S, evaluate
from controlplane.alerts.models import Alert, AlertRule, AlertTransition, EvaluationClock, RuleStatus
from controlplane.alerts.services import (
    acknowledge_alert,
    create_silence,
    delete_rule,
    end_silence,
    update_rule,
)
from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict
from controlplane.webhooks.alerts import current_alerts
from controlplane.webhooks.events import read_new
from controlplane.webhooks.formats import body_of
from tests.alerts.conftest import ACTOR, seconds, traffic

pytestmark = pytest.mark.django_db


def _states() -> list[str]:
    return list(Alert.objects.order_by("id").values_list("state", flat=True))


def _events(at) -> list[str]:
    return [event.event for event in read_new(at) if event.event.startswith("alert.")]


def test_each_moment_is_evaluated_once(make_rule, now) -> None:
    make_rule()
    traffic(now, share=0.1)
    assert evaluate(now) == 1
    assert evaluate(now) is None and evaluate(now + seconds(1)) is None
    assert evaluate(now + seconds(TICK_S)) == 0
    assert Alert.objects.count() == 1 and AlertTransition.objects.count() == 1


def test_a_tick_that_dies_leaves_its_moment_to_the_next(make_rule, now, monkeypatch) -> None:
    make_rule()
    traffic(now, share=0.1)
    monkeypatch.setattr(evaluation, "_note_status", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate(now)
    assert not Alert.objects.exists() and not EvaluationClock.objects.filter(slot__gt=0).exists()
    monkeypatch.undo()
    assert evaluate(now) == 1 and _states() == ["firing"]


def test_it_fires_after_it_has_held_and_ends_beyond_the_other_value(make_rule, now) -> None:
    make_rule(for_s=30, clear_at=0.7)
    said = []
    for step, share in enumerate((0.1, 0.1, 0.1, 0.6, 0.9)):
        at = now + seconds(120 * step)
        traffic(at, share=share)
        evaluate(at)
        said.append(_states())
    assert said == [["pending"], ["firing"], ["firing"], ["firing"], ["resolved"]]
    [alert] = Alert.objects.all()
    assert alert.value == pytest.approx(0.9) and alert.subject == "fleet"
    assert [row.to_state for row in alert.transitions.all()] == ["firing", "resolved"]


def test_without_figures_it_is_unknown_never_fine(make_rule, now) -> None:
    rule = make_rule()
    evaluate(now)
    [alert] = Alert.objects.all()
    assert (alert.state, alert.value) == ("unknown", None) and "0 requests" in alert.reason
    assert RuleStatus.objects.get(rule=rule).state == "unknown"
    traffic(now + seconds(20), share=0.9, requests=5)
    evaluate(now + seconds(20))
    assert _states() == ["unknown"]
    traffic(now + seconds(40), share=0.9)
    evaluate(now + seconds(40))
    assert _states() == [] and RuleStatus.objects.get(rule=rule).state == "ok"


def test_figures_that_stop_do_not_end_an_alert(make_rule, now) -> None:
    make_rule()
    traffic(now, share=0.1)
    evaluate(now)
    evaluate(now + seconds(300))
    [alert] = Alert.objects.all()
    assert (alert.state, alert.unknown_since) == ("firing", now + seconds(300))
    assert alert.value == pytest.approx(0.1)


def test_a_silenced_alert_is_told_when_its_silence_ends(make_rule, now) -> None:
    make_rule()
    read_new(now)
    silence = create_silence(
        actor=ACTOR, rule_slug="low", reason="known", ends_at=now + timedelta(hours=1), now=now - seconds(1)
    )
    traffic(now, share=0.1)
    evaluate(now)
    assert _states() == ["silenced"] and _events(now) == []
    assert current_alerts()["alerts"] == []
    end_silence(silence.pk, actor=ACTOR)
    with pytest.raises(Conflict):
        end_silence(silence.pk, actor=ACTOR)
    traffic(now + seconds(15), share=0.1)
    evaluate(now + seconds(15))
    assert _states() == ["firing"] and _events(now + seconds(15)) == ["alert.firing"]
    traffic(now + seconds(80), share=0.9)
    evaluate(now + seconds(90))
    assert _events(now + seconds(90))[-1] == "alert.resolved"
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"silence.create", "silence.end"} <= actions


def test_one_that_was_never_told_ends_untold(make_rule, now) -> None:
    make_rule()
    read_new(now)
    create_silence(actor=ACTOR, subject="fl*", reason="known", ends_at=now + timedelta(hours=1), now=now - seconds(1))
    traffic(now, share=0.1)
    evaluate(now)
    traffic(now + seconds(80), share=0.9)
    evaluate(now + seconds(90))
    assert _states() == ["resolved"] and _events(now + seconds(90)) == []


def test_alertmanager_sees_one_alert_begin_and_end(make_rule, now) -> None:
    make_rule(tenant="", severity="critical", runbook_url="https://runbooks.example/low")
    read_new(now)
    traffic(now, share=0.1)
    evaluate(now)
    standing = current_alerts()["alerts"]
    traffic(now + seconds(80), share=0.9)
    evaluate(now + seconds(90))
    begun, ended = (event for event in read_new(now + seconds(90)) if event.event.startswith("alert."))
    documents = [
        body_of("alertmanager", event.as_json(), receiver="am", external_url="https://tidemark.example")
        for event in (begun, ended)
    ]
    first, second = (document["alerts"][0] for document in documents)
    assert (first["status"], second["status"]) == ("firing", "resolved")
    assert first["fingerprint"] == second["fingerprint"] == standing[0]["fingerprint"]
    assert first["startsAt"] == second["startsAt"]
    assert first["labels"]["alertname"] == "Low" and first["labels"]["severity"] == "critical"
    assert first["annotations"]["runbook_url"] == "https://runbooks.example/low"
    assert json.dumps(documents)


def test_what_speaks_of_another_condition_ends(make_rule, now) -> None:
    make_rule()
    traffic(now, share=0.1)
    evaluate(now)
    update_rule("low", actor=ACTOR, severity="critical")
    assert _states() == ["firing"]
    update_rule("low", actor=ACTOR, threshold=0.05)
    assert _states() == ["resolved"]
    update_rule("low", actor=ACTOR, threshold=0.5)
    evaluate(now + seconds(15))
    assert _states() == ["resolved", "firing"]
    delete_rule("low", actor=ACTOR)
    assert _states() == ["resolved", "resolved"]
    assert set(Alert.objects.values_list("rule_slug", flat=True)) == {"low"}


def test_acknowledged_it_goes_on(make_rule, now) -> None:
    make_rule()
    traffic(now, share=0.1)
    evaluate(now)
    [alert] = Alert.objects.all()
    acknowledge_alert(alert.pk, actor=ACTOR, reason="in hand")
    with pytest.raises(Conflict):
        acknowledge_alert(alert.pk, actor=ACTOR, reason="again")
    evaluate(now + seconds(15))
    alert.refresh_from_db()
    assert (alert.state, alert.acknowledged_by) == ("firing", ACTOR)


def test_the_default_rules_can_all_be_read(db, now) -> None:
    assert AlertRule.objects.count() == 12
    assert evaluate(now) is not None
    assert RuleStatus.objects.count() == 12
    states = dict(RuleStatus.objects.values_list("rule__slug", "state"))
    assert states["worker-down"] == states["budget-used-up"] == "idle", "there is no worker, and no budget"
    assert states["ttft-slow"] == "unknown" and states["critical-finding"] == "ok"
    assert all(rule.runbook for rule in AlertRule.objects.all())


def test_of_two_ticks_at_once_one_has_the_moment(make_rule, now, monkeypatch) -> None:
    """The other one read its figures too, and finds the moment taken when it comes to write."""
    make_rule()
    traffic(now, share=0.1)
    readings = evaluation.Reader.readings

    def slow(reader, rule):
        monkeypatch.setattr(evaluation.Reader, "readings", readings)
        assert evaluate(now) == 1
        return readings(reader, rule)

    monkeypatch.setattr(evaluation.Reader, "readings", slow)
    assert evaluate(now) is None
    assert AlertTransition.objects.count() == 1


def test_a_rule_that_changed_meanwhile_waits_for_the_next_tick(make_rule, now, monkeypatch) -> None:
    make_rule()
    traffic(now, share=0.1)
    readings = evaluation.Reader.readings

    def changed(reader, rule):
        update_rule("low", actor=ACTOR, threshold=0.05)
        return readings(reader, rule)

    monkeypatch.setattr(evaluation.Reader, "readings", changed)
    assert evaluate(now) == 0 and not Alert.objects.exists()
