"""People with a role in one tenant alone, and pages as they see them."""

from __future__ import annotations

from django.test import Client

from controlplane.tenants.models import Membership, Tenant, User
from tests.dashboard import story


def member(name: str, role: str, tenant: str) -> Client:
    user = User.objects.create_user(username=name, password=story.PASSWORD)
    Membership.objects.create(user=user, role=role, tenant=Tenant.objects.get(slug=tenant))
    client = Client()
    client.force_login(user)
    return client


def html_of(client: Client, path: str, *, status: int = 200) -> str:
    """The page with single spaces."""
    answer = client.get(path)
    assert answer.status_code == status, answer.content[:1000]
    return " ".join(answer.content.decode().split())
