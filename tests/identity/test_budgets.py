"""A tenant's prefill budget: set and cleared by operators, published to the routers."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings

from controlplane.snapshots.services import publish_pending
from router.contract.snapshot import TenantGrant, open_document

IF_ANY = {"if-match": "*"}


def _set(api, **change: object):
    return api.patch("/api/v1/tenants/acme", change, format="json", headers=IF_ANY)


def _grant() -> TenantGrant:
    return open_document(publish_pending().document.encode(), django_settings.FLEET_KEY)[1].tenants["acme"]


def test_a_budget_reaches_the_snapshot_and_clearing_the_rate_clears_the_burst(olga) -> None:
    assert _set(olga, prefill_tokens_per_s=1000, prefill_burst_tokens=9000).status_code == 200
    assert _grant() == TenantGrant(prefill_tokens_per_s=1000, prefill_burst_tokens=9000)
    cleared = _set(olga, prefill_tokens_per_s=None)
    assert cleared.json()["prefill_burst_tokens"] is None
    assert _grant() == TenantGrant()


def test_a_rename_keeps_the_budget_and_needs_no_publication(olga) -> None:
    _set(olga, prefill_tokens_per_s=1000)
    version = publish_pending().version
    assert _set(olga, name="Acme Ltd").json()["prefill_tokens_per_s"] == 1000
    assert publish_pending().version == version


@pytest.mark.parametrize(
    "change", [{"prefill_tokens_per_s": 0}, {"prefill_tokens_per_s": 1e12}, {"prefill_burst_tokens": 5},
               {"prefill_tokens_per_s": 10, "prefill_burst_tokens": 0}, {"prefill_tokens_per_s": "many"}],
)  # fmt: skip
def test_an_impossible_budget_is_refused(olga, change: dict[str, object]) -> None:
    assert _set(olga, **change).status_code == 422
    assert _grant() == TenantGrant()


def test_a_tenants_administrator_sees_the_budget_and_cannot_raise_it(alice, olga) -> None:
    _set(olga, prefill_tokens_per_s=1000)
    assert alice.get("/api/v1/tenants/acme").json()["prefill_tokens_per_s"] == 1000
    assert _set(alice, prefill_tokens_per_s=9999).status_code == 403
