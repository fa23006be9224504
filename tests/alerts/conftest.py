"""Rules of the test alone, and requests as the rollups hold them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.models import AlertRule
from controlplane.alerts.services import create_rule
from controlplane.telemetry.merge import Contribution
from controlplane.telemetry.rollups import REQUEST_TABLE, add
from router.contract.histogram import bucket_of

ACTOR = "user:olga"


@pytest.fixture(autouse=True)
def surroundings(settings, tmp_path) -> None:
    """No Valkey."""
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"


@pytest.fixture
def no_rules(db) -> None:
    """Without the default ones."""
    AlertRule.objects.all().delete()


@pytest.fixture
def now() -> datetime:
    return timezone.now().replace(second=5, microsecond=0)


@pytest.fixture
def make_rule(no_rules: None) -> Callable[..., AlertRule]:
    def make(**values: Any) -> AlertRule:
        given = {
            "slug": "low", "name": "Hit share low", "measure": "hit_share", "comparison": "below", "threshold": 0.5,
            "window_s": 60,
        }  # fmt: skip
        return create_rule(actor=ACTOR, **(given | values))

    return make


def traffic(at: datetime, *, share: float, requests: int = 40, tenant: str = "acme", ttft_ms: float = 200) -> None:
    """Requests of the second before `at`, of whose prompt tokens that share was cached."""
    values = {
        "requests": requests, "usage_known": requests, "hit_known": requests, "prompt_tokens": requests * 1000,
        "hit_prompt_tokens": requests * 1000, "hit_tokens": int(requests * 1000 * share), "slo_known": requests,
        "slo_met": requests, "ttft_hit": {str(bucket_of(ttft_ms)): requests}, "isolation_checked": requests,
    }  # fmt: skip
    dims = (tenant, f"{tenant}/a", "llama", "llama/w1", "m", "")
    add(REQUEST_TABLE, [Contribution(at.timestamp() - 1, dims, values)], now_s=at.timestamp())


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)
