"""Alice administers acme, Bob looks at it, Charlie is of globex and must see nothing of acme; Olga operates all."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from controlplane.tenants.models import User
from controlplane.tenants.roles import Role
from tests.identity.world import OTHER, OWN, make_user, make_world


@pytest.fixture(autouse=True)
def no_valkey(settings, tmp_path) -> None:
    """Services push after commits: never into a Valkey that happens to run on this machine."""
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"


@pytest.fixture
def world(db) -> None:
    make_world()


def signed_in(user: User) -> APIClient:
    client = APIClient()
    client.force_login(user)
    return client


@pytest.fixture
def alice(world) -> APIClient:
    return signed_in(make_user("alice", Role.TENANT_ADMIN, tenant=OWN))


@pytest.fixture
def bob(world) -> APIClient:
    return signed_in(make_user("bob", Role.VIEWER, tenant=OWN))


@pytest.fixture
def charlie(world) -> APIClient:
    return signed_in(make_user("charlie", Role.ADMIN, tenant=OTHER))


@pytest.fixture
def olga(world) -> APIClient:
    return signed_in(make_user("olga", Role.OPERATOR))
