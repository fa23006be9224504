"""Variants of a snapshot: each router draws its place, and ends overrides by its own clock."""

from __future__ import annotations

import math

import msgspec
import pytest

from router.contract.snapshot import (
    NamespacePolicy,
    NamespaceValues,
    PolicySnapshot,
    PoolPolicy,
    PoolValues,
    Variant,
    Watermark,
    body_text,
)
from router.core.variants import place, settled

BASE = PolicySnapshot(
    tenants={}, keys={}, workers={},
    namespaces={"acme/a": NamespacePolicy("acme", "a", "n"), "acme/b": NamespacePolicy("acme", "b", "n")},
    pools={"p": PoolPolicy(models=("m",)), "q": PoolPolicy(models=("n",))},
)  # fmt: skip
LOW = Watermark(low=0.3, high=0.5, source="pool:p")


def _with(*variants: Variant) -> PolicySnapshot:
    return msgspec.structs.replace(BASE, variants=variants)


def test_without_variants_the_snapshot_is_the_published_one() -> None:
    assert settled(BASE, router="r1", now=0.0).snapshot is BASE


def test_only_named_values_of_named_pools_and_namespaces_change() -> None:
    variant = Variant(
        "v", pools={"p": PoolValues(watermark=LOW), "gone": PoolValues(virtual_nodes=7)},
        namespaces={"acme/a": NamespaceValues(priority=2)},
    )  # fmt: skip
    found = settled(_with(variant), router="r1", now=0.0)
    assert found.in_force == ("v",) and found.snapshot.variants == ()
    assert found.snapshot.pools["p"] == msgspec.structs.replace(BASE.pools["p"], watermark=LOW)
    assert found.snapshot.pools["q"] == BASE.pools["q"] and "gone" not in found.snapshot.pools
    assert found.snapshot.namespaces["acme/a"].priority == 2
    assert found.snapshot.namespaces["acme/b"] == BASE.namespaces["acme/b"]


def test_the_narrower_variant_comes_later_and_wins() -> None:
    wide = Variant("wide", pools={"p": PoolValues(spill_outstanding=4, virtual_nodes=50)})
    narrow = Variant("narrow", pools={"p": PoolValues(spill_outstanding=9)})
    pool = settled(_with(wide, narrow), router="r1", now=0.0).snapshot.pools["p"]
    assert (pool.spill_outstanding, pool.virtual_nodes) == (9, 50)


def test_it_ends_by_the_routers_own_clock() -> None:
    snapshot = _with(Variant("v", until=100.0, pools={"p": PoolValues(watermark=LOW)}))
    before = settled(snapshot, router="r1", now=99.9)
    assert before.snapshot.pools["p"].watermark == LOW and before.changes_at == 100.0
    after = settled(snapshot, router="r1", now=100.0)
    assert after.snapshot.pools["p"].watermark == Watermark() and after.changes_at == math.inf


def test_a_growing_share_keeps_the_routers_it_has_and_ends_with_all() -> None:
    routers = [f"router-{number}" for number in range(2000)]
    taken: set[str] = set()
    for share in (0.1, 0.5, 1.0):
        snapshot = _with(Variant("v", share=share, pools={"p": PoolValues(watermark=LOW)}))
        now_taken = {router for router in routers if settled(snapshot, router=router, now=0.0).in_force}
        assert taken <= now_taken
        assert len(now_taken) / len(routers) == pytest.approx(share, abs=0.03)
        taken = now_taken


def test_different_variants_begin_on_different_routers() -> None:
    routers = [f"router-{number}" for number in range(200)]
    first, second = ({router for router in routers if place(name, router) < 0.1} for name in ("a", "b"))
    assert first and second and first != second


def test_a_router_of_an_older_release_reads_the_values_beside_them() -> None:
    class Older(msgspec.Struct, frozen=True):
        pools: dict[str, PoolPolicy]
        format: int

    variant = Variant("v", pools={"p": PoolValues(watermark=LOW)})
    read = msgspec.json.decode(body_text(_with(variant)), type=Older)
    assert read.pools == BASE.pools
