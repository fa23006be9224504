"""What routers say of pools in exact mode, as findings: opened, kept through silence, closed when parity is proven."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from controlplane.fleet.models import Finding, WorkerPool
from controlplane.telemetry.exactness import CHANGED_KIND, POOL_KIND, WORKER_KIND, watch_exact_pools
from controlplane.telemetry.ingest import apply_entries
from router.contract.telemetry import ExactState, RouterState
from tests.telemetry.shipments import shipment

pytestmark = pytest.mark.django_db

V1, V2 = "1" * 16, "2" * 16
EXACT = ExactState("exact", V1)
OFF = ExactState("approximate: a worker tokenises differently", V1, {"chat/w2": "chat turns"})
_seq = iter(range(10_000))


@pytest.fixture(autouse=True)
def pool(db: object) -> WorkerPool:
    return WorkerPool.objects.create(slug="chat", name="Chat", block_size=16, tokenizer="llama")


def told(state: ExactState, *, source: str = "r1", boot: str = "b1", pool: str = "chat") -> datetime:
    now = timezone.now()
    router = RouterState(1, 0.0, 0, 0, 0, exact={pool: state})
    assert apply_entries([shipment(next(_seq), now.timestamp(), source=source, boot=boot, router=router)], now=now)
    watch_exact_pools(now)
    return now


def open_kinds() -> set[tuple[str, str]]:
    return set(Finding.objects.filter(resolved_at=None).values_list("kind", "subject"))


def test_a_worker_that_tokenises_differently_is_named_until_parity_is_proven() -> None:
    told(OFF)
    assert open_kinds() == {(POOL_KIND, "chat"), (WORKER_KIND, "chat/w2")}
    messages = " ".join(Finding.objects.values_list("message", flat=True))
    assert "r1" in messages and "chat turns" in messages and "a worker tokenises differently" in messages
    told(EXACT)
    assert open_kinds() == set()


def test_a_pool_that_loads_is_none() -> None:
    told(ExactState("loading"))
    assert open_kinds() == set()


def test_one_router_that_is_exact_does_not_close_what_another_one_tells() -> None:
    told(OFF, source="r1")
    told(EXACT, source="r2")
    assert (WORKER_KIND, "chat/w2") in open_kinds()
    told(EXACT, source="r1")
    assert open_kinds() == set()


def test_a_silent_router_neither_opens_nor_closes() -> None:
    at = told(OFF)
    watch_exact_pools(at + timedelta(minutes=2))
    assert (POOL_KIND, "chat") in open_kinds()
    Finding.objects.update(resolved_at=at)
    watch_exact_pools(at + timedelta(minutes=2))
    assert open_kinds() == set()


def test_a_pool_without_tokenizer_has_none(pool: WorkerPool) -> None:
    at = told(OFF)
    pool.tokenizer = ""
    pool.save()
    watch_exact_pools(at)
    assert open_kinds() == set()


def test_files_that_changed_between_boots_are_an_event() -> None:
    told(EXACT, boot="b1")
    assert open_kinds() == set()
    told(ExactState("exact", V2), boot="b2")
    finding = Finding.objects.get(kind=CHANGED_KIND, subject="chat")
    assert V1 in finding.message and V2 in finding.message and finding.severity == "info"


def test_routers_with_different_files_are_a_warning() -> None:
    told(EXACT, source="r1")
    told(ExactState("exact", V2), source="r2")
    assert Finding.objects.get(kind=CHANGED_KIND).severity == "warning"


def test_a_router_may_not_speak_of_workers_of_other_pools() -> None:
    told(ExactState("approximate: x", V1, {"other/w1": "p"}))
    told(OFF, pool="elsewhere")
    assert open_kinds() == {(POOL_KIND, "chat")}


def test_a_state_that_is_none_is_read_as_nothing() -> None:
    from controlplane.telemetry.models import SourceProgress

    at = told(OFF)
    SourceProgress.objects.update(router_state={"exact": {"chat": 7}})
    Finding.objects.update(resolved_at=at)
    watch_exact_pools(at)
    assert open_kinds() == set()
