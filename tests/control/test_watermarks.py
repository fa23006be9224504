"""Watermark policies: 0 < low < high ≤ 1 in words, by scope, narrowest first (S0.4)."""

from __future__ import annotations

import math

import pytest
from django.db import IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.policies.models import WatermarkPolicy
from controlplane.policies.selectors import effective_watermark
from controlplane.policies.services import clear_watermark, ensure_global, set_watermark
from controlplane.policies.watermarks import checked_watermark
from tests.control.conftest import ACTOR

ANYTHING = st.one_of(st.floats(), st.integers(), st.none(), st.text(max_size=3), st.booleans())


@given(low=ANYTHING, high=ANYTHING, dwell_s=ANYTHING)
def test_it_accepts_exactly_what_the_rule_allows(low: object, high: object, dwell_s: object) -> None:
    def is_number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    allowed = (
        all(is_number(value) for value in (low, high, dwell_s)) and 0.01 <= low < high <= 1 and 0 <= dwell_s <= 3600
    )
    try:
        values = checked_watermark(low=low, high=high, dwell_s=dwell_s)
    except Invalid as error:
        assert not allowed
        assert all(item["field"] in ("low", "high", "dwell_s") and item["message"] for item in error.errors)
    else:
        assert allowed and (values.low, values.high) == (low, high)


@pytest.mark.parametrize(
    ("low", "high", "field", "message"),
    [
        (0.85, 0.65, "low", "Low must be below high."),
        (0.7, 0.7, "low", "Low must be below high."),
        (math.nan, 0.8, "low", "Low must be a number."),
        (0.5, math.inf, "high", "High must be a number."),
        (0, 0.8, "low", "Low must be between 0.01 and 1 (85 % is 0.85)."),
        (0.5, 1e9, "high", "High must be between 0.01 and 1 (85 % is 0.85)."),
        (0.5, 10**400, "high", "High must be a number."),
        (-0.1, 0.8, "low", "Low must be between 0.01 and 1 (85 % is 0.85)."),
        ("0.5", 0.8, "low", "Low must be a number."),
    ],
)
def test_the_field_error_is_in_words(db, low, high, field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        set_watermark(actor=ACTOR, scope="global", low=low, high=high)
    assert caught.value.errors == [{"field": field, "message": message}]
    assert not AuditEntry.objects.exists()


def test_the_database_refuses_it_too(db) -> None:
    ensure_global()
    with pytest.raises(IntegrityError), transaction.atomic():
        WatermarkPolicy.objects.update(low=0.9, high=0.8)


def test_a_global_policy_exists_from_the_start(db) -> None:
    row = WatermarkPolicy.objects.get(scope="global")
    assert (row.low, row.high, row.dwell_s) == (0.65, 0.85, 0.0)
    assert ensure_global() == row


def test_the_narrowest_scope_wins_and_is_named(support, pool) -> None:
    def sources() -> list[str]:
        return [
            effective_watermark(pool="llama", namespace="acme/support").source,
            effective_watermark(pool="llama").source,
            effective_watermark(pool="other").source,
        ]

    assert sources() == ["global", "global", "global"]
    set_watermark(actor=ACTOR, scope="pool:llama", low=0.5, high=0.7)
    assert sources() == ["pool:llama", "pool:llama", "global"]
    set_watermark(actor=ACTOR, scope="namespace:acme/support", low=0.4, high=0.6)
    assert sources() == ["namespace:acme/support", "pool:llama", "global"]
    clear_watermark(actor=ACTOR, scope="namespace:acme/support")
    assert sources()[0] == "pool:llama"


@pytest.mark.parametrize(
    ("scope", "error"),
    [
        ("pool:none", NotFound),
        ("namespace:acme/none", NotFound),
        ("namespace:acme", NotFound),
        ("galaxy", Invalid),
        ("", Invalid),
        ("global:x", Invalid),
    ],
)
def test_an_unknown_scope_is_refused(support, scope: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        set_watermark(actor=ACTOR, scope=scope, low=0.5, high=0.6)


def test_revisions_guard_creation_change_and_removal(support) -> None:
    scope = "namespace:acme/support"
    with pytest.raises(Stale):
        set_watermark(actor=ACTOR, scope=scope, low=0.5, high=0.6, if_revision=1)
    assert set_watermark(actor=ACTOR, scope=scope, low=0.5, high=0.6, if_revision=0).revision == 1
    with pytest.raises(Stale):
        set_watermark(actor=ACTOR, scope=scope, low=0.5, high=0.7, if_revision=0)
    assert set_watermark(actor=ACTOR, scope=scope, low=0.5, high=0.7, if_revision=1).revision == 2
    with pytest.raises(Stale):
        clear_watermark(actor=ACTOR, scope=scope, if_revision=1)
    clear_watermark(actor=ACTOR, scope=scope, if_revision=2)


def test_the_same_values_again_change_nothing(db) -> None:
    first = set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    again = set_watermark(actor=ACTOR, scope="global", low=0.5, high=0.6)
    assert again.revision == first.revision
    assert AuditEntry.objects.count() == 1


def test_the_global_policy_cannot_be_removed(db) -> None:
    with pytest.raises(Conflict):
        clear_watermark(actor=ACTOR, scope="global")
