"""A tenant with something of everything: members, keys in each state, a budget, a revocation on its way, findings.

For those who look at the pages with their eyes: `tests.browser.seed` and then this.
"""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from controlplane.fleet.findings import Observation, observe
from controlplane.namespaces.key_services import issue_key, rotate_key
from controlplane.namespaces.services import create_namespace, set_namespace_status
from controlplane.namespaces.sharing_services import propose_sharing
from controlplane.revocations.models import Revocation, RouterAck
from controlplane.tenants.member_services import grant_role
from controlplane.tenants.models import Status, User
from controlplane.tenants.services import update_tenant
from tests.dashboard.story import PASSWORD

PEOPLE = (("alice", "tenant_admin"), ("bob", "viewer"))


def tell() -> None:
    for name, role in PEOPLE:
        User.objects.create_user(name, password=PASSWORD)
        grant_role(actor="user:olga", username=name, role=role, tenant="acme")
    update_tenant(actor="user:olga", tenant="acme", name="Acme Support", prefill_tokens_per_s=4000.0)
    create_namespace(actor="user:alice", tenant="acme", slug="trial", name="Trial of a new assistant")
    _keys()
    propose_sharing(
        actor="user:olga", namespace="acme/support", isolation="project", project="help", reason="same articles"
    )
    observe([Observation("prefix_breaker", "acme/support", "A clock stands in front of 3.1 k shared tokens.")],
            at=timezone.now() - timedelta(minutes=9))  # fmt: skip
    set_namespace_status(actor="user:alice", namespace="acme/trial", status=Status.REVOKED, reason="trial is over")
    _acknowledged()


def _keys() -> None:
    soon = timezone.now() + timedelta(days=30)
    issued = issue_key(actor="user:alice", namespace="acme/support", name="helpdesk", expires_at=soon)
    rotate_key(actor="user:alice", key_id=issued.key.key_id, overlap_s=3600, reason="yearly")
    issue_key(actor="user:alice", namespace="acme/trial", name="trial")


def _acknowledged() -> None:
    row = Revocation.objects.get(kind="namespace")
    Revocation.objects.filter(pk=row.pk).update(announced_at=row.created_at)
    answered = {"seen_at": row.created_at, "acked_at": row.created_at + timedelta(milliseconds=41), "way": "direct"}
    RouterAck.objects.update_or_create(revocation=row, router_id="router-1", defaults=answered)
    RouterAck.objects.update_or_create(revocation=row, router_id="router-2", defaults={"seen_at": timezone.now()})
