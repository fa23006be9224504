"""Clients that race a revocation: nothing is admitted from the acknowledgement on."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.revocation.__main__ import Sizes, keys_needed, measure
from benchmarks.revocation.fleet import running
from benchmarks.revocation.racing import Asked, Racer, admitted_after, finish, refused_at, start_racer
from router.core.model import Grant
from tests.revocation.conftest import acked, send
from tests.router.conftest import ALICE_ID, ALICE_KEY, RunningRouter

POLL_BOUND_MS = 2000.0


@pytest.mark.interpreted
async def test_nothing_is_admitted_after_the_acknowledgement(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from inside: the router's own order of admissions and of the acknowledgement."""
    table, store = router.runtime.table, router.runtime.store
    admitted: list[Grant] = []
    at_the_acknowledgement: list[int] = []
    resolve, revoke = table.resolve, store.revoke

    def counting_resolve(**asked: object) -> Grant:
        grant = resolve(**asked)  # type: ignore[arg-type]
        admitted.append(grant)
        return grant

    def counting_revoke(revocations: object) -> None:
        revoke(revocations)  # type: ignore[arg-type]
        at_the_acknowledgement.append(len(admitted))

    monkeypatch.setattr(table, "resolve", counting_resolve)
    monkeypatch.setattr(store, "revoke", counting_revoke)
    racers: list[Racer] = [
        await start_racer(router.settings.router_port, ALICE_KEY, depth=depth) for depth in (1, 1, 1, 8, 8, 16)
    ]
    await asyncio.sleep(0.3)
    assert acked(await send(router, epoch=2, kind="key", subject=ALICE_ID)) == (2,)
    await asyncio.sleep(0.3)
    asked = await finish(racers)
    statuses = [status for one in asked for status in one.statuses]
    assert statuses.count(200) > 20 and statuses.count(401) > 20
    assert at_the_acknowledgement == [len(admitted)]
    assert admitted_after(asked, {}) == 0


def test_the_count_of_racing_requests_sees_what_it_looks_for() -> None:
    late = Asked(1, sent=[1.0, 5.0], answered=[1.1, 5.1], statuses=[200, 200])
    behind = Asked(1, sent=[1.0, 1.0, 1.0], answered=[2.0, 2.1, 2.2], statuses=[200, 401, 200])
    assert admitted_after([late], {1: 4.0}) == 1
    assert admitted_after([late], {1: 6.0}) == admitted_after([late], {2: 4.0}) == 0
    assert admitted_after([behind], {}) == 1
    assert refused_at([late, behind], 1) == 2.1 and refused_at([late], 1) is None


@pytest.mark.flow
@pytest.mark.timeout(240)
def test_it_holds_between_real_processes() -> None:
    sizes = Sizes(healthy=3, lost=2, restarted=1, racing=2000)
    with running(keys=keys_needed(sizes)) as fleet:
        figures = asyncio.run(measure(fleet, sizes, ("healthy", "racing", "restarted", "lost")))
    assert figures["racing"]["ok"], figures
    assert figures["restarted"]["ok"], figures
    # The bar of a healthy fleet, 200 ms, is measured where nothing else runs; the poll's bound holds everywhere.
    assert figures["healthy"]["max_ms"] <= POLL_BOUND_MS, figures
    assert figures["lost"]["max_ms"] <= POLL_BOUND_MS, figures
