"""A fleet in trouble whose rules were evaluated: alerts of every state, a silence, a past one."""

from __future__ import annotations

from datetime import datetime, timedelta

from controlplane.alerts.evaluation import evaluate
from controlplane.alerts.models import Alert
from controlplane.alerts.services import acknowledge_alert, create_rule, create_silence, update_rule
from controlplane.audit.verification import verify_and_note
from controlplane.deadletters.models import TaskDelivery
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.isolation.models import CanaryResult
from controlplane.webhooks.models import Delivery, Subscription
from tests.dashboard import story

ACTOR = "user:olga"


def tell(now: datetime) -> None:
    """On top of story.make_fleet, story.tell and story.make_rollout."""
    update_rule("ttft-slow", actor=ACTOR, threshold=300, clear_at=250, for_s=60)
    create_rule(
        actor=ACTOR, slug="acme-hits", name="Hits of acme", measure="hit_share", comparison="below", threshold=0.99,
        for_s=0, tenant="acme", runbook="Ask acme's team about its templates.",
    )  # fmt: skip
    WorkerPool.objects.create(slug="spare")
    create_rule(
        actor=ACTOR, slug="spare-hits", name="Hits of the spare pool", measure="hit_share", comparison="below",
        threshold=0.2, pool="spare",
    )  # fmt: skip
    update_rule("kv-use-high", actor=ACTOR, threshold=0.3, clear_at=0.2, for_s=3600)
    create_silence(
        actor=ACTOR, rule_slug="worker-down", subject="demo/w1", reason="New power supply until noon.",
        ends_at=now + timedelta(hours=2), now=now - timedelta(minutes=3),
    )  # fmt: skip
    update_rule("goodput-low", actor=ACTOR, threshold=0.999, clear_at=None, for_s=0)
    for minutes in (2, 1):
        evaluate(now - timedelta(minutes=minutes))
    update_rule("goodput-low", actor=ACTOR, threshold=0.5)
    story.trouble(now)
    evaluate(now)
    open_one = Alert.objects.filter(rule_slug="acme-hits", resolved_at=None).first()
    assert open_one is not None
    acknowledge_alert(open_one.pk, actor=ACTOR, reason="Its team mends the template.")


def seed() -> None:
    """For those who look at it with their eyes: also what the pages beside it show."""
    now = story.utc_now()
    tell(now)
    row = Subscription.objects.create(
        slug="pager", origin="https://alertmanager.example:443", sealed="", events=["alert.*", "violation"],
        format="alertmanager", created_at=now,
    )  # fmt: skip
    for number, state in enumerate(("delivered", "dead", "pending")):
        Delivery.objects.create(
            subscription=row, event_key=f"k{number}", event="alert.firing", state=state, attempts=1 + 3 * number,
            payload={"summary": "TTFT slow: fleet (612)"}, last_status=200 if state == "delivered" else 503,
            last_error="" if state == "delivered" else "It answered with status 503.", created_at=now,
            next_attempt_at=now if state == "pending" else None, finished_at=None if state == "pending" else now,
        )  # fmt: skip
    TaskDelivery.objects.create(
        task="canary", subject="7", deliveries=3, error="ValueError at canary_run.py:71", first_at=now, last_at=now,
        dead_at=now,
    )  # fmt: skip
    for index, worker in enumerate(Worker.objects.all()):
        for endpoint in ("chat", "completions", "responses", "messages", "embeddings"):
            verdict = "red" if (index, endpoint) == (2, "messages") else "green"
            CanaryResult.objects.create(
                worker=worker, endpoint=endpoint, model="m", reason="Own salt 48 hit tokens.", duration_ms=80,
                checked_at=now - timedelta(minutes=12 * index), verdict=verdict,
            )  # fmt: skip
    verify_and_note(by=ACTOR)
