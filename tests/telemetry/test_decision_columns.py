"""Decisions kept before they had columns to filter by get them from their detail."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module

import pytest
from django.apps import apps

from controlplane.telemetry.decisions import Wanted, decisions, find_decision
from controlplane.telemetry.models import DecisionRecord
from controlplane.telemetry.windows import Scope

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SCOPE = Scope(from_=datetime(2026, 11, 30, 11, 0, tzinfo=UTC), to=datetime(2026, 11, 30, 13, 0, tzinfo=UTC))


def _record(request_id: str, **detail: object) -> None:
    DecisionRecord.objects.create(
        request_id=request_id, at=NOW, tenant="acme", namespace="acme/chat", pool="p", outcome="ok", reason="home",
        detail=detail,
    )  # fmt: skip


def test_columns_are_filled_from_the_detail() -> None:
    _record("whole", model="llama", predicted_hit_tokens=512, cached_tokens=128)
    _record("defaults", model="llama")
    import_module("controlplane.telemetry.migrations.0005_decision_filters").fill(apps, None)
    rows = {row.request_id: row for row in DecisionRecord.objects.all()}
    whole, defaults = rows["whole"], rows["defaults"]
    assert (whole.model, whole.predicted_hit_tokens, whole.cached_tokens) == ("llama", 512, 128)
    assert (defaults.predicted_hit_tokens, defaults.cached_tokens) == (0, None), "a default was left out; unknown stays"
    assert [row.request_id for row in decisions(SCOPE, Wanted(off_tokens_min=384))] == ["whole"]
    assert not decisions(SCOPE, Wanted(off_tokens_min=385)).exists()


def test_another_tenants_decision_is_as_absent() -> None:
    _record("mine")
    assert find_decision("mine", tenants={"acme"}) is not None
    assert find_decision("mine", tenants={"globex"}) is None and find_decision("mine", tenants=set()) is None
    assert not decisions(SCOPE, tenants={"globex"}).exists()
