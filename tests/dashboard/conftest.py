"""Fixtures of the dashboard's tests: signed-in clients, no shared rendering between tests, no Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from django.test import Client

from controlplane.tenants.models import User
from dashboard import fragments
from tests.dashboard import story
from tests.dashboard.people import member

STORY_MINUTES = 5
"""Enough for every panel; a longer story is told to those who look at it with their eyes."""


@pytest.fixture(autouse=True)
def _alone(settings: object) -> Iterator[None]:
    """Renderings are shared by the process, and so would be by tests; nothing here may wait for an absent Valkey."""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}  # type: ignore[attr-defined]
    fragments.forget()
    yield
    fragments.forget()


@pytest.fixture
def now() -> datetime:
    return story.utc_now()


@pytest.fixture
def operator(db: None) -> Client:
    return _client(User.Role.OPERATOR, "olga")


@pytest.fixture
def viewer(db: None) -> Client:
    return _client(User.Role.VIEWER, "vera")


@pytest.fixture
def admin(db: None) -> Client:
    return _client("admin", "ada")


@pytest.fixture
def fleet(db: None, now: datetime) -> None:
    """Tenants, workers, some minutes of traffic and a router on v12."""
    story.make_fleet()
    story.tell(now, minutes=STORY_MINUTES)
    story.make_rollout(now)


@pytest.fixture
def short_fleet(db: None, now: datetime) -> None:
    """The same with a minute of traffic: enough for sums."""
    story.make_fleet()
    story.tell(now, minutes=1)
    story.make_rollout(now)


@pytest.fixture
def alice(short_fleet: None) -> Client:
    """Administrator of acme alone."""
    return member("alice", "tenant_admin", "acme")


@pytest.fixture
def bob(short_fleet: None) -> Client:
    """Looks at acme alone."""
    return member("bob", "viewer", "acme")


def _client(role: str, name: str) -> Client:
    client = Client(enforce_csrf_checks=False)
    client.force_login(story.make_user(name, role=role))
    return client
