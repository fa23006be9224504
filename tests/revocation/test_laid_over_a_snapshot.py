"""What a revocation takes from a snapshot, and that hearing it twice, late or out of order does no harm."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.revocation import Revocation
from router.contract.snapshot import ModelGeneration, PolicySnapshot
from router.core.model import Grant, InvalidKey, NamespaceUnready
from router.core.revocation import epoch_reached, generation_number, in_force, refusal_of, without
from tests.router.conftest import ALICE_ID, CHARLIE_ID, MODEL, snapshot_for

BASE = snapshot_for(["http://127.0.0.1:9"])
EACH = {
    "key": Revocation(2, "key", ALICE_ID),
    "namespace": Revocation(3, "namespace", "acme/support"),
    "tenant": Revocation(4, "tenant", "acme"),
    "model": Revocation(5, "model", f"p:{MODEL}", retired=1),
}


def _grant(snapshot: PolicySnapshot, *, model_nonce: str = "") -> Grant:
    policy = snapshot.namespaces["acme/support"]
    return Grant(ALICE_ID, "acme", "acme/support", policy, "p", MODEL, "salt", model_nonce)


@pytest.mark.parametrize("kind", EACH)
def test_it_takes_away_what_it_names_and_nothing_else(kind: str) -> None:
    after = without(BASE, [EACH[kind]])
    assert in_force(EACH[kind], after) and not in_force(EACH[kind], BASE)
    assert refusal_of(_grant(BASE), BASE, now=2.0) is None
    refusal = refusal_of(_grant(BASE), after, now=2.0)
    assert type(refusal) is (NamespaceUnready if kind == "model" else InvalidKey)
    charlie = Grant(CHARLIE_ID, "zeta", "zeta/other", BASE.namespaces["zeta/other"], "p", "another", "salt")
    assert refusal_of(charlie, after, now=2.0) is None
    assert after.workers == BASE.workers and after.keys[CHARLIE_ID] == BASE.keys[CHARLIE_ID]


@pytest.mark.parametrize("kind", EACH)
def test_it_is_in_force_where_its_subject_is_not_known(kind: str) -> None:
    empty = PolicySnapshot(tenants={}, keys={}, namespaces={}, pools={}, workers={})
    assert in_force(EACH[kind], empty)
    assert without(empty, EACH.values()) is empty


@given(st.lists(st.sampled_from(list(EACH.values())), max_size=8))
def test_order_and_repetition_change_nothing(heard: list[Revocation]) -> None:
    step_by_step = BASE
    for revocation in heard:
        step_by_step = without(step_by_step, [revocation])
    assert step_by_step == without(BASE, heard) == without(BASE, sorted(set(heard), key=lambda item: item.epoch))


def test_an_old_revocation_of_a_model_spares_its_later_generations() -> None:
    later = ModelGeneration(number=3, nonce="c" * 32)
    pools = {"p": msgspec.structs.replace(BASE.pools["p"], model_generations={MODEL: later})}
    snapshot = msgspec.structs.replace(BASE, pools=pools)
    assert generation_number(snapshot.pools["p"], MODEL) == 3
    assert in_force(EACH["model"], snapshot) and without(snapshot, [EACH["model"]]) is snapshot
    assert refusal_of(_grant(snapshot, model_nonce="c" * 32), snapshot, now=2.0) is None
    assert refusal_of(_grant(snapshot), snapshot, now=2.0) is not None


@pytest.mark.parametrize(
    ("base", "heard", "reached"),
    [(4, [], 4), (4, [5], 5), (4, [6], 4), (4, [6, 5, 7], 7), (4, [3, 4], 4), (0, [1, 2, 4], 2)],
)
def test_an_epoch_is_reached_without_gaps_only(base: int, heard: list[int], reached: int) -> None:
    assert epoch_reached(base, heard) == reached
