"""Two tenants with the same things in them, and a caller for each role in the fleet and in one of the tenants."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.alerts.models import Alert, AlertRule, Silence
from controlplane.approvals.models import ChangeRequest
from controlplane.deadletters.models import TaskDelivery
from controlplane.fleet.models import Finding, PoolModel, Worker, WorkerPool
from controlplane.isolation.models import IsolationViolation, TtftAudit
from controlplane.namespaces.models import ApiKey, CacheNamespace, TrustGroup
from controlplane.placements.models import PlacementRule
from controlplane.policies.models import Rollout
from controlplane.policies.services import set_routing, set_watermark
from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion
from controlplane.reports.models import ReportDelivery, ReportFile, ReportRun, ReportSchedule, ReportShare
from controlplane.revocations.models import Revocation
from controlplane.telemetry.models import DecisionRecord
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.webhooks.models import Delivery, Subscription
from controlplane.what_if.models import WhatIf

OWN, OTHER = "acme", "globex"
NAMESPACES = {OWN: "acme/support", OTHER: "globex/support"}
KEYS = {OWN: "acmekey00000", OTHER: "globexkey000"}
EPOCHS = {OWN: 101, OTHER: 102}
"""Of their revocations."""
MEMBERS = {OWN: 9001, OTHER: 9002}
CHANGE_REQUESTS = {OWN: 1, OTHER: 2}
ROLLOUTS = {OWN: 1, OTHER: 2}
ALERTS = {OWN: 1, OTHER: 2}
VIOLATIONS = {OWN: 1, OTHER: 2}
REPORTS = {OWN: 1, OTHER: 2}
WHAT_IFS = {OWN: 1, OTHER: 2}


def make_world() -> None:
    for slug in (OWN, OTHER):
        tenant = Tenant.objects.create(slug=slug, name=slug.title())
        namespace = CacheNamespace.objects.create(tenant=tenant, slug="support")
        ApiKey.objects.create(namespace=namespace, key_id=KEYS[slug], secret_hash="0" * 64, name="k", created_by="x")
        set_watermark(actor="user:world", scope=f"namespace:{slug}/support", low=0.5, high=0.8)
        set_routing(actor="user:world", scope=f"namespace:{slug}/support", values={"priority": 1})
        member = make_user(f"member-of-{slug}", None)
        Membership.objects.create(pk=MEMBERS[slug], user=member, role=Role.VIEWER, tenant=tenant)
        _make_change_request(slug)
        _make_violation(slug)
        _make_decision(slug)
        _make_rollout(slug)
        template = PromptTemplate.objects.create(tenant=tenant, slug="desk")
        segments = [{"kind": "static", "name": "rules", "text": "Be brief."}]
        PromptTemplateVersion.objects.create(template=template, version=1, segments=segments)
        Revocation.objects.create(
            epoch=EPOCHS[slug], kind="key", subject="gone00000000", tenant=slug, audit_id=0, created_at=timezone.now()
        )
        _make_alert(slug)
    Silence.objects.create(
        pk=1, rule_slug="worker-down", reason="because", created_by="user:world", starts_at=timezone.now(),
        ends_at=timezone.now() + timedelta(days=1),
    )  # fmt: skip
    TrustGroup.objects.create(slug="alliance")
    pool = WorkerPool.objects.create(slug="llama")
    PoolModel.objects.create(pool=pool, name="m")
    for number, slug in enumerate((OWN, OTHER), start=1):
        _make_placement(number, slug, pool)
    worker = Worker.objects.create(pool=pool, slug="w1", url="http://127.0.0.1:1")
    TtftAudit.objects.create(
        pk=1, worker=worker, model="m", requested_by="user:world", requested_at=timezone.now(),
        finished_at=timezone.now(),
    )  # fmt: skip
    _make_webhook()
    _make_reports()
    _make_what_ifs()
    TaskDelivery.objects.create(
        pk=1, task="canary", subject="1", deliveries=3, first_at=timezone.now(), last_at=timezone.now(),
        dead_at=timezone.now(),
    )  # fmt: skip
    Finding.objects.create(
        pk=1, kind="k", subject="llama/w1", message="m", first_seen=timezone.now(), last_seen=timezone.now()
    )


def _make_webhook() -> None:
    """Its address is none that may be called."""
    row = Subscription.objects.create(
        slug="pager", origin="http://127.0.0.1:1", sealed="", events=["*"], created_at=timezone.now()
    )
    Delivery.objects.create(
        pk=1, subscription=row, event_key="k", event="test", payload={}, state="dead", created_at=timezone.now()
    )


def _make_reports() -> None:
    now = timezone.now()
    for slug, pk in REPORTS.items():
        row = ReportSchedule.objects.create(
            pk=pk, slug=f"of-{slug}", name=slug, cron="0 8 * * 1", scope="tenant", subject=slug, next_due_at=now
        )
        run = ReportRun.objects.create(
            pk=pk, schedule=row, tenant=slug, state="done", from_at=now - timedelta(days=1), to_at=now, created_at=now,
            settings={"slug": row.slug, "name": slug, "scope": "tenant", "subject": slug, "time_zone": "UTC",
                      "formats": ["json"], "recipients": []},
        )  # fmt: skip
        ReportFile.objects.create(run=run, format="json", content=b"{}", bytes=2)
        ReportDelivery.objects.create(pk=pk, run=run, to="x@example.com", state="dead", created_at=now)
        ReportShare.objects.create(
            pk=pk, run=run, nonce=str(pk), created_by="user:world", created_at=now, expires_at=now + timedelta(days=1)
        )


def _make_what_ifs() -> None:
    now = timezone.now()
    for slug, pk in WHAT_IFS.items():
        WhatIf.objects.create(
            pk=pk, asked_by="user:world", pool="llama", tenant=slug, from_at=now - timedelta(hours=1), to_at=now,
            question={"scenarios": [{"name": "as it is"}, {"name": "load × 2", "load_factor": 2}]}, created_at=now,
        )  # fmt: skip


def _make_violation(tenant: str) -> None:
    IsolationViolation.objects.create(
        pk=VIOLATIONS[tenant], at=timezone.now(), request_id=f"of-{tenant}", tenant=tenant,
        namespace=f"{tenant}/support", pool="llama", worker="llama/w1", model="m", prompt_tokens=9, cached_tokens=9,
        bound_tokens=0,
    )  # fmt: skip


def _make_decision(tenant: str) -> None:
    """Of a worker that is busy with another's requests."""
    detail = {
        "at": 0.0, "request_id": f"of-{tenant}", "tenant": tenant, "namespace": f"{tenant}/support", "pool": "llama",
        "model": "m", "policy_version": 7, "worker": "llama/w1", "reason": "home",
        "sentence": "w1 is its home, 12 requests under way.",
        "candidates": [
            {"worker": "llama/w0", "excluded": "drain"},
            {"worker": "llama/w1", "matched_tokens": 512, "saved_ms": 40.0, "net_ms": 40.0, "outstanding": 12},
        ],
    }  # fmt: skip
    DecisionRecord.objects.create(
        request_id=f"of-{tenant}", at=timezone.now(), tenant=tenant, namespace=f"{tenant}/support", pool="llama",
        worker="llama/w1", outcome="ok", reason="home", model="m", predicted_hit_tokens=512, detail=detail,
    )  # fmt: skip


def _make_alert(tenant: str) -> None:
    rule = AlertRule.objects.create(
        slug=f"hits-of-{tenant}", name="Hits", measure="hit_share", comparison="below", threshold=0.5, tenant=tenant
    )
    Alert.objects.create(
        pk=ALERTS[tenant], rule=rule, rule_slug=rule.slug, name=rule.name, measure=rule.measure, severity="warning",
        subject=tenant, tenant=tenant, state="firing", since=timezone.now(), fired_at=timezone.now(),
    )  # fmt: skip


def _make_rollout(tenant: str) -> None:
    now = timezone.now()
    Rollout.objects.create(
        pk=ROLLOUTS[tenant], kind="routing", scope=f"namespace:{tenant}/support", tenant=tenant, candidate=2,
        values={"priority": 2}, stages=[0.5, 1.0], author="user:world", started_at=now, stage_at=now,
    )  # fmt: skip


def _make_placement(number: int, tenant: str, pool: WorkerPool) -> None:
    now = timezone.now()
    PlacementRule.objects.create(
        pk=number, namespace=CacheNamespace.objects.get(tenant__slug=tenant), pool=pool, prefix="0" * 16, homes=2,
        until=now + timedelta(hours=1), created_by="user:world", created_at=now,
    )  # fmt: skip


def _make_change_request(tenant: str) -> None:
    now = timezone.now()
    ChangeRequest.objects.create(
        pk=CHANGE_REQUESTS[tenant], kind="none", subject=tenant, tenant=tenant, change={}, reason="because",
        proposed_by="user:world", proposed_at=now, expires_at=now + timedelta(days=1),
    )  # fmt: skip


def make_user(name: str, role: Role | None, *, tenant: str = "") -> User:
    """With that role in the tenant, or ("") in the whole fleet; None = an account without any."""
    user = User.objects.create(username=name)
    if role is not None:
        Membership.objects.create(user=user, role=role, tenant=Tenant.objects.get(slug=tenant) if tenant else None)
    return user


def caller(role: Role | None, *, tenant: str = "") -> APIClient:
    client = APIClient()
    client.force_authenticate(make_user(f"{role or 'nobody'}-{tenant or 'fleet'}", role, tenant=tenant))
    return client
