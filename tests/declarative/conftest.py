"""A fleet with one thing of every kind, and the means to empty the database of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management.color import no_style
from django.db import connection
from django.utils import timezone

from controlplane.alerts.services import create_rule
from controlplane.approvals.services import approve
from controlplane.fleet.models import Worker
from controlplane.fleet.services import add_worker, create_pool, revoke_model, set_worker_state
from controlplane.namespaces.key_services import issue_key, revoke_key
from controlplane.namespaces.services import create_namespace, rotate_generation, set_namespace_status
from controlplane.namespaces.sharing_services import create_group, propose_sharing
from controlplane.policies.services import ensure_global, set_routing, set_watermark
from controlplane.prompts.public_services import propose_public
from controlplane.prompts.services import create_template, draft_version, publish_version, retire_version
from controlplane.reports.services import create_schedule
from controlplane.tenants.services import create_tenant, set_tenant_status
from controlplane.webhooks.services import create_subscription

ALICE, BOB = "user:alice", "user:bob"
TEXT = "You answer questions about parcels. Be brief, and name the rule that you follow. " * 4


@pytest.fixture(autouse=True)
def no_valkey(settings, tmp_path) -> None:
    """Services push after commits: never into a Valkey that happens to run on this machine."""
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"


@pytest.fixture
def fleet(db, settings, monkeypatch) -> None:
    monkeypatch.setattr(settings.CONFIG, "webhook_networks", ["127.0.0.0/8"])
    ensure_global()
    create_tenant(actor=ALICE, slug="acme", name="Acme", prefill_tokens_per_s=5000.0, prefill_burst_tokens=9000)
    create_tenant(actor=ALICE, slug="globex", name="Globex: 100% #1")
    create_tenant(actor=ALICE, slug="initech", name="Initech")
    for name in ("acme/support", "acme/desk", "acme/lab", "globex/web", "globex/gone", "initech/all"):
        tenant, _, slug = name.partition("/")
        create_namespace(
            actor=ALICE, tenant=tenant, slug=slug, ttft_slo_ms=800.5, model_names=["m2", "m1"], priority=-2
        )
    rotate_generation(actor=ALICE, namespace="acme/lab")
    create_group(actor=ALICE, slug="alliance", name="Alliance")
    _share("acme/support", isolation="trust_group", trust_group="alliance")
    _share("globex/web", isolation="trust_group", trust_group="alliance")
    _share("acme/desk", isolation="project", project="help")
    _share("acme/lab", isolation="shared_public")
    create_pool(actor=ALICE, slug="llama", models=["m2", "m1"], block_size=32, prefill_tokens_per_s=9000.0)
    revoke_model(actor=ALICE, pool="llama", model="m1")
    add_worker(
        actor=ALICE, pool="llama", slug="w1", url="http://127.0.0.1:8001", kv_events_endpoint="tcp://127.0.0.1:9001"
    )
    add_worker(actor=ALICE, pool="llama", slug="w2", url="http://127.0.0.1:8002")
    set_worker_state("llama/w2", actor=ALICE, state="drain")
    facts = {"kv_blocks": 1000, "block_size": 32, "hash_algorithm": "sha256", "version": "0.1"}
    Worker.objects.filter(slug="w1").update(facts=facts)
    set_watermark(actor=ALICE, scope="global", low=0.5, high=0.9)
    set_watermark(actor=ALICE, scope="namespace:acme/support", low=0.4, high=0.7, dwell_s=3)
    set_routing(actor=ALICE, scope="pool:llama", values={"virtual_nodes": 200})
    _templates()
    issue_key(actor=ALICE, namespace="acme/support", name="ci", scopes=["inference", "explain"])
    issue_key(actor=ALICE, namespace="globex/gone", name="web", expires_at=timezone.now() + timedelta(days=3))
    revoked = issue_key(actor=ALICE, namespace="globex/web", name="old")
    revoke_key(actor=ALICE, key_id=revoked.key.key_id)
    set_namespace_status(actor=ALICE, namespace="globex/gone", status="revoked")
    set_tenant_status(actor=ALICE, tenant="initech", status="suspended")
    _watchers()


def _watchers() -> None:
    create_rule(
        actor=ALICE, slug="acme-hits", name="Hits of Acme", measure="hit_share", comparison="below", threshold=0.5,
        clear_at=0.6, for_s=120, tenant="acme", runbook="Look at\nHit tokens.", severity="critical",
    )  # fmt: skip
    create_subscription(actor=ALICE, slug="pager", url="http://127.0.0.1:9/hook/token-4711", events=["alert.*"])
    create_schedule(
        actor=ALICE, slug="weekly", name="Weekly", cron="0 7 * * 1", time_zone="Europe/Berlin", scope="tenant",
        subject="acme", formats=["pdf", "html"], gpu_hour_cost=2.5,
        recipients=[{"kind": "email", "to": "alice@acme.example"}, {"kind": "webhook", "to": "pager"}],
    )  # fmt: skip


def _share(namespace: str, **change: str) -> None:
    asked = propose_sharing(actor=ALICE, namespace=namespace, reason="they belong together", **change)
    approve(asked.pk, actor=BOB)


def _templates() -> None:
    create_template(actor=ALICE, tenant="acme", slug="desk", name="Desk")
    for number in (1, 2, 3):
        segments = [
            {"kind": "static", "name": "rules", "text": f"{TEXT}\nEdition {'abc'[number - 1]}."},
            {"kind": "dynamic", "name": "question", "text": "{{ question }}"},
        ]
        draft_version(actor=ALICE, template="acme/desk", segments=segments)  # type: ignore[arg-type]
        if number < 3:
            publish_version(
                actor=ALICE, template="acme/desk", version=number, reason="fine so",
                accept=["static_part_not_block_aligned"],
            )  # fmt: skip
    retire_version(actor=ALICE, template="acme/desk", version=1)
    asked = propose_public(actor=ALICE, template="acme/desk", version=2, reason="nothing of anybody's")
    approve(asked.pk, actor=BOB)


def empty_the_database() -> None:
    """As after the first migration."""
    tables = [name for name in connection.introspection.table_names() if name.split("_")[0] in OURS]
    with connection.constraint_checks_disabled(), connection.cursor() as cursor:
        for statement in connection.ops.sql_flush(no_style(), tables, allow_cascade=True):
            cursor.execute(statement)
    ensure_global()


OURS = {
    "audit", "approvals", "revocations", "tenants", "namespaces", "prompts", "fleet", "policies", "snapshots",
    "rollouts", "isolation", "declarative", "alerts", "webhooks", "reports",
}  # fmt: skip
