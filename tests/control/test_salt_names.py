"""Salts belong to the namespaces that routers make them for."""

from __future__ import annotations

from django.conf import settings

from controlplane.fleet.models import PoolModel
from controlplane.namespaces.services import create_namespace, rotate_generation
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.snapshots.salts import PublishedSalts, names_of
from controlplane.snapshots.services import publish_pending
from router.core.policy_book import PolicyBook
from tests.control.conftest import ACTOR


def salts_as_routed(snapshot, namespace: str, *models: str) -> set[str]:
    book = PolicyBook(fleet_key=settings.FLEET_KEY, verified_keys_max=1, stale_deny_after_s=0)
    book.apply(snapshot)
    return {book.grant_of(namespace, model=model).salt for model in models}


def test_each_namespace_has_the_salts_that_requests_get(support, pool) -> None:
    create_namespace(actor=ACTOR, tenant="acme", slug="search")
    PoolModel.objects.create(
        pool=pool, name="later", generation=2, generation_nonce="ab" * 16, generation_at=support.created_at
    )
    snapshot = compile_snapshot()
    names = names_of(snapshot)
    for namespace in ("acme/support", "acme/search"):
        routed = salts_as_routed(snapshot, namespace, "m", "later")
        assert len(routed) == 2
        assert {salt for salt, name in names.items() if name == namespace} == routed


def test_they_follow_what_is_published(support, pool, django_assert_num_queries) -> None:
    salts = PublishedSalts()
    assert salts() == {}
    publish_pending()
    first = dict(salts())
    assert set(first.values()) == {"acme/support"}
    with django_assert_num_queries(1):
        assert salts() == first
    rotate_generation(actor=ACTOR, namespace="acme/support")
    publish_pending()
    assert not first.keys() & salts().keys()
    assert all(salt not in repr(salts) for salt in first)
