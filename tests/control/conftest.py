"""Alice operates, Bob may only look, Charlie is nobody here; and a Valkey that is not there unless a test asks."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings
from rest_framework.test import APIClient

from controlplane.fleet.models import PoolModel, Worker, WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.namespaces.services import create_namespace
from controlplane.tenants.models import User
from controlplane.tenants.services import create_tenant

ACTOR = "user:alice"


@pytest.fixture(autouse=True)
def no_valkey(settings, tmp_path) -> None:
    """Services push after commits: never into a Valkey that happens to run on this machine."""
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"


@pytest.fixture
def support(db) -> CacheNamespace:
    """`acme/support`, with nothing else around it."""
    create_tenant(actor=ACTOR, slug="acme", name="Acme")
    return create_namespace(actor=ACTOR, tenant="acme", slug="support")


@pytest.fixture
def pool(db) -> WorkerPool:
    """`llama` with the model `m` and the worker `llama/w1`."""
    row = WorkerPool.objects.create(slug="llama")
    PoolModel.objects.create(pool=row, name="m")
    facts = {"kv_blocks": 100, "block_size": 16}
    Worker.objects.create(pool=row, slug="w1", url="http://127.0.0.1:8001", facts=facts)
    return row


def _client(username: str | None, role: str = User.Role.VIEWER) -> APIClient:
    client = APIClient(enforce_csrf_checks=False)
    if username:
        client.force_login(User.objects.create_user(username, password="x", role=role))
    return client


@pytest.fixture
def alice(db) -> APIClient:
    return _client("alice", User.Role.OPERATOR)


@pytest.fixture
def bob(db) -> APIClient:
    return _client("bob", User.Role.VIEWER)


@pytest.fixture
def charlie(db) -> APIClient:
    return _client(None)


@pytest.fixture
def router_client(db) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {django_settings.FLEET_KEY.router_token()}")
    return client
