"""Routers hear each other's load within a quarter of a second, trust no other clock, and say how far they differ."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from router.adapters.peers import GONE_AFTER_S, PEERS_MAX, PeerExchange
from router.contract.channels import PEER_LOAD_HASH
from router.contract.ids import TenantId, WorkerId
from router.contract.live import WorkerLive
from router.contract.peers import RouterLoad, WorkerShare, decode_load, encode_load
from router.core.hints import Placed
from router.core.model import RoutingRequest
from router.core.peers import PEER_FADED_S, PeerLoad
from router.core.table import RoutingTable
from tests.router.conftest import FLEET, signed, snapshot_for

W1, W2 = WorkerId("p/w1"), WorkerId("p/w2")


class Hashes:
    """Valkey's hashes, in this process."""

    def __init__(self) -> None:
        self.up = True
        self.fields: dict[bytes, bytes] = {}

    async def exchange_in_hash(self, key: str, field: str, value: bytes) -> dict[bytes, bytes] | None:
        assert key == PEER_LOAD_HASH
        if not self.up:
            return None
        self.fields[field.encode()] = value
        return dict(self.fields)

    async def remove_from_hash(self, key: str, field: str) -> None:
        self.fields.pop(field.encode(), None)


class Router:
    """One router's end of the exchange."""

    def __init__(self, name: str, hashes: Hashes, *, clock_ahead_s: float = 0.0) -> None:
        self.now = 1000.0
        self.own: dict[WorkerId, PeerLoad] = {}
        self.heard: Mapping[str, Mapping[WorkerId, PeerLoad]] = {}
        self.version = 1
        self.placed: list[Placed] = []
        self.told: list[Placed] = []
        self.exchange = PeerExchange(
            router_id=name, boot="b", valkey=hashes, own_load=lambda now: self.own,  # type: ignore[arg-type]
            apply=self._apply, snapshot_version=lambda: self.version, clock=lambda: self.now + clock_ahead_s,
            take_placed=self._take_placed, hear_placed=lambda placed, now: self.told.extend(placed),
        )  # fmt: skip

    def _take_placed(self) -> list[Placed]:
        placed, self.placed = self.placed, []
        return placed

    def _apply(self, now: float, loads: Mapping[str, Mapping[WorkerId, PeerLoad]]) -> None:
        self.heard = loads

    def works(self, worker: WorkerId, requests: int, tokens: float = 0.0) -> None:
        self.own[worker] = PeerLoad(tokens, requests, self.now)

    async def turn(self, at: float) -> None:
        self.now = at
        await self.exchange.exchange()


@pytest.fixture
def hashes() -> Hashes:
    return Hashes()


async def _meet(*routers: Router, turns: int = 2, start: float = 1000.0) -> float:
    for turn in range(turns):
        for router in routers:
            await router.turn(start + 0.25 * turn)
    return start + 0.25 * (turns - 1)


async def test_it_hears_what_the_others_put_on_the_workers(hashes: Hashes) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes)
    two.works(W1, 3, 4096.4)
    await _meet(one, two, turns=3)
    assert one.heard["r2"][W1].outstanding == 3 and one.heard["r2"][W1].pending_prefill_tokens == pytest.approx(4096.4)
    assert "r1" not in one.heard and two.heard["r1"] == {}


async def test_it_trusts_no_clock_but_its_own(hashes: Hashes) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes, clock_ahead_s=-86_400.0)
    two.works(W1, 1)
    at = await _meet(one, two, turns=3)
    assert one.heard["r2"][W1].at == pytest.approx(at, abs=0.3)


async def test_it_counts_no_router_that_is_gone(hashes: Hashes) -> None:
    hashes.fields[b"dead"] = encode_load(RouterLoad("dead", "b", 7, 1, {"p/w1": WorkerShare(50, 1.0)}))
    one = Router("r1", hashes)
    await _meet(one, turns=4)
    assert one.heard == {} and one.exchange.state().ages_s == {}
    await one.turn(1002.0 + GONE_AFTER_S)
    assert b"dead" not in hashes.fields


async def test_it_forgets_a_peer_that_falls_silent_or_says_goodbye(hashes: Hashes) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes)
    two.works(W1, 2)
    at = await _meet(one, two, turns=3)
    await one.turn(at)
    await one.turn(at + PEER_FADED_S + 0.5)
    assert one.heard == {}
    at = await _meet(one, two, turns=2, start=at + PEER_FADED_S + 1)
    await one.turn(at)
    assert one.heard["r2"][W1].outstanding == 2
    await two.exchange.say_goodbye()
    await one.turn(at + 0.25)
    assert one.heard == {}


async def test_it_recognises_a_restarted_peer(hashes: Hashes) -> None:
    one = Router("r1", hashes)
    for boot, seq in (("a", 5), ("b", 1)):
        hashes.fields[b"r2"] = encode_load(RouterLoad("r2", boot, seq, 1, {"p/w1": WorkerShare(1, 0.0)}))
        await one.turn(one.now + 0.25)
    assert one.heard["r2"][W1].outstanding == 1


@pytest.mark.parametrize(
    "junk",
    [
        b"", b"{", b"[]", b'{"router":"r2"}', b'{"router":"r2","boot":"b","seq":"x"}', b"\xff\xfe", b"x" * 300_000,
        encode_load(RouterLoad("other", "b", 1)),
        encode_load(RouterLoad("r1", "b", 9, 1, {"p/w1": WorkerShare(9, 9.0)})),
    ],
)  # fmt: skip
async def test_it_leaves_out_what_it_cannot_read(hashes: Hashes, junk: bytes) -> None:
    one = Router("r1", hashes)
    for _ in range(3):
        hashes.fields[b"r2"] = junk
        await one.turn(one.now + 0.25)
    assert one.heard == {}


async def test_it_bounds_how_many_it_hears(hashes: Hashes) -> None:
    one = Router("r1", hashes)
    for seq in range(3):
        for number in range(PEERS_MAX + 20):
            name = f"p{number}"
            hashes.fields[name.encode()] = encode_load(RouterLoad(name, "b", seq, 1, {"p/w1": WorkerShare(1, 0.0)}))
        await one.turn(one.now + 0.25)
    assert len(one.heard) == PEERS_MAX


async def test_it_goes_on_alone_while_valkey_is_away(hashes: Hashes) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes)
    two.works(W1, 2)
    at = await _meet(one, two, turns=3)
    hashes.up = False
    await one.turn(at + 1)
    assert one.heard["r2"][W1].outstanding == 2  # the core lets it fade
    assert one.exchange.state().ages_s == {"r2": pytest.approx(1.0, abs=0.3)}


async def test_it_says_how_far_the_views_differ(hashes: Hashes) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes)
    one.works(W1, 1)
    two.works(W1, 2)
    two.version = 3
    at = await _meet(one, two, turns=3)
    one.exchange.note_samples({
        W1: WorkerLive(at=at, running=4, waiting=1), W2: WorkerLive(at=at - 60, running=9),
    })  # fmt: skip
    state = one.exchange.state()
    assert (state.unexplained, state.snapshot_lags) == ({W1: 2}, {"r2": -2})


async def test_it_moves_new_prefixes_away_from_where_peers_are_busy() -> None:
    snapshot = snapshot_for(["http://127.0.0.1:9", "http://127.0.0.1:10"])
    table = RoutingTable(fleet_key=FLEET, booted_at=0.0, rng=random.Random(1))
    table.apply_snapshot(signed(snapshot), snapshot, now=1.0)
    table.apply_peers(now=1.0, loads={"r2": {W1: PeerLoad(200_000.0, 40, 1.0)}})
    assert table.own_load(now=1.0) == {}
    grant = table.grant_of("acme/support", model="m")  # type: ignore[arg-type]
    chosen = {table.choose(RoutingRequest(str(i), grant, None), now=1.0).worker for i in range(6)}
    assert chosen == {W2}


def test_it_keeps_the_wire_small() -> None:
    load = RouterLoad("r1", "0123456789abcdef", 1, 1, {f"pool/w{i}": WorkerShare(12, 34567.8) for i in range(100)})
    data = encode_load(load)
    assert decode_load(data) == load and len(data) < 100 * 30


PLACED = Placed(TenantId("acme"), W1, bytes(range(32)))


async def test_it_hears_once_where_others_sent_prompts(hashes: Hashes) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes)
    two.placed.append(PLACED)
    await _meet(one, two, turns=6)
    assert one.told == [PLACED] and two.told == []


@pytest.mark.parametrize(("missed", "heard"), [(2, True), (5, False)])
async def test_a_reader_that_misses_some_publications_misses_no_placed_prompt(
    hashes: Hashes, missed: int, heard: bool
) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes)
    at = await _meet(one, two, turns=3)
    two.placed.append(PLACED)
    for turn in range(1, missed + 2):
        await two.turn(at + 0.25 * turn)
    await one.turn(at + 0.25 * (missed + 2))
    assert (one.told == [PLACED]) is heard


async def test_a_router_that_restarted_is_heard_from_its_first_word(hashes: Hashes) -> None:
    one, two = Router("r1", hashes), Router("r2", hashes)
    two.placed.append(PLACED)
    at = await _meet(one, two, turns=8)
    again = Router("r2", hashes)
    again.exchange._boot = "c"
    again.placed.append(PLACED)
    await _meet(one, again, turns=3, start=at + 1)
    assert one.told == [PLACED, PLACED]
