"""A fleet with recorded traffic of two tenants, and the people who ask about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from controlplane.tenants.roles import FULL_ACCESS, Access
from controlplane.what_if import services
from controlplane.what_if.models import WhatIf
from dashboard import fragments
from tests.dashboard import story
from tests.what_if.recorded_story import tell_recorded


@pytest.fixture(autouse=True)
def _alone(settings: Any, tmp_path: Any) -> Iterator[None]:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"
    fragments.forget()
    yield
    fragments.forget()


@pytest.fixture
def now() -> datetime:
    return story.utc_now()


@pytest.fixture
def recorded(db: None, now: datetime) -> datetime:
    """Ten minutes of acme's and globex' sessions on `demo`. The moment they end."""
    story.make_fleet()
    story.tell(now, minutes=1)
    tell_recorded(now, sessions=12)
    tell_recorded(now, tenant="globex", namespace="agents", sessions=12)
    return now


def ask(now: datetime, *, access: Access = FULL_ACCESS, actor: str = "user:olga", **values: Any) -> WhatIf:
    """About the last half hour of `demo`, with one seed."""
    given: dict[str, Any] = {
        "pool": "demo", "from_at": now - timedelta(minutes=30), "to_at": now, "scenarios": [{"more_workers": 2}],
        "seeds": 1,
    }  # fmt: skip
    return services.ask(actor=actor, access=access, **(given | values))
