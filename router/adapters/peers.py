"""Routers of one fleet share their load and where prompts went through Valkey: each publishes its own and reads the
others', in one call.

Own reservations count at once; those of other routers within PUBLISH_INTERVAL_S. A peer's figures are as old as its
last publication was seen HERE: clocks of other machines are not trusted, and an entry that has not changed since this
router started is that of a router that is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from router.adapters.valkey import Valkey
from router.contract.channels import PEER_LOAD_HASH
from router.contract.ids import TenantId, WorkerId
from router.contract.live import LIVE_STALE_AFTER_S, WorkerLive
from router.contract.peers import (
    LOAD_BYTES_MAX,
    PLACED_BATCHES,
    PlacedBatch,
    PlacedPrompts,
    RouterLoad,
    WorkerShare,
    decode_load,
    encode_load,
)
from router.core.hints import Placed
from router.core.peers import PEER_FADED_S, PeerLoad

PUBLISH_INTERVAL_S = 0.25
PEERS_MAX = 32
"""Routers heard at one time; further ones are left to the pollers' figures."""
GONE_AFTER_S = 600.0
"""An entry unchanged for so long is removed: its router ended without saying so."""

Loads = Mapping[str, Mapping[WorkerId, PeerLoad]]


@dataclass(slots=True)
class _Peer:
    load: RouterLoad
    seen_at: float
    """Local Unix seconds at which the load last changed."""
    lives: bool = False
    """It has changed since this router first saw it."""
    heard_seq: int = 0
    """Newest batch of placed prompts that was taken."""


@dataclass(frozen=True, slots=True)
class PeersState:
    """For `/metrics` and `/state`: how far this router's view is from the others'."""

    ages_s: dict[str, float] = field(default_factory=dict)
    """Live peer → seconds since it was last heard."""
    snapshot_lags: dict[str, int] = field(default_factory=dict)
    """Live peer → own snapshot version less its."""
    unexplained: dict[WorkerId, int] = field(default_factory=dict)
    """Worker → requests in the pollers' last sample beyond what this router and its peers tell of (or, below 0, that
    the sample lacks); workers without a fresh sample are left out."""


class PeerExchange:
    def __init__(
        self,
        *,
        router_id: str,
        boot: str,
        valkey: Valkey,
        own_load: Callable[[float], Mapping[WorkerId, PeerLoad]],
        apply: Callable[[float, Loads], None],
        take_placed: Callable[[], list[Placed]],
        hear_placed: Callable[[list[Placed], float], None],
        snapshot_version: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._router_id = router_id
        self._boot = boot
        self._valkey = valkey
        self._own_load = own_load
        self._apply = apply
        self._take_placed = take_placed
        self._hear_placed = hear_placed
        self._placed: deque[PlacedBatch] = deque(maxlen=PLACED_BATCHES)
        self._snapshot_version = snapshot_version
        self._clock = clock
        self._seq = 0
        self._peers: dict[str, _Peer] = {}
        self._samples: Mapping[WorkerId, WorkerLive] = {}

    async def run(self) -> None:
        """Forever. While Valkey is away nothing is applied, and the figures age out in the core."""
        while True:
            await self.exchange()
            await asyncio.sleep(PUBLISH_INTERVAL_S)

    async def exchange(self) -> None:
        """Publish, read, apply: once."""
        found = await self._valkey.exchange_in_hash(PEER_LOAD_HASH, self._router_id, self._own())
        if found is None:
            return
        now = self._clock()
        self._take(found, now)
        self._apply(now, self._loads(now))
        for router in [router for router, peer in self._peers.items() if now - peer.seen_at > GONE_AFTER_S]:
            del self._peers[router]
            await self._valkey.remove_from_hash(PEER_LOAD_HASH, router)

    def note_samples(self, workers: Mapping[WorkerId, WorkerLive]) -> None:
        """The pollers' view, for the comparison in `state`."""
        self._samples = workers

    async def say_goodbye(self) -> None:
        await self._valkey.remove_from_hash(PEER_LOAD_HASH, self._router_id)

    def state(self) -> PeersState:
        now = self._clock()
        live = self._live(now)
        version = self._snapshot_version()
        return PeersState(
            ages_s={router: now - peer.seen_at for router, peer in live.items()},
            snapshot_lags={router: version - peer.load.snapshot_version for router, peer in live.items()},
            unexplained=self._unexplained(live, now),
        )

    def _own(self) -> bytes:
        self._seq += 1
        load = self._own_load(self._clock())
        shares = {
            str(worker): WorkerShare(each.outstanding, round(each.pending_prefill_tokens, 1))
            for worker, each in load.items()
        }
        placed = tuple(PlacedPrompts(each.tenant, each.worker, each.anchors) for each in self._take_placed())
        if placed:
            self._placed.append(PlacedBatch(self._seq, placed))
        while self._placed and self._placed[0].seq <= self._seq - PLACED_BATCHES:
            self._placed.popleft()
        version = self._snapshot_version()
        return encode_load(RouterLoad(self._router_id, self._boot, self._seq, version, shares, tuple(self._placed)))

    def _take(self, found: Mapping[bytes, bytes], now: float) -> None:
        gone = set(self._peers)
        for name, value in found.items():
            load = _decoded(value)
            if load is None or load.router == self._router_id or name != load.router.encode():
                continue
            gone.discard(load.router)
            self._hear(load, now)
        for router in gone:
            del self._peers[router]

    def _hear(self, load: RouterLoad, now: float) -> None:
        peer = self._peers.get(load.router)
        if peer is None:
            if len(self._peers) < PEERS_MAX:
                peer = self._peers[load.router] = _Peer(load, now)
                self._hear_new(peer, now)
        elif (load.boot, load.seq) != (peer.load.boot, peer.load.seq):
            if load.boot != peer.load.boot:
                peer.heard_seq = 0
            peer.load, peer.seen_at, peer.lives = load, now, True
            self._hear_new(peer, now)

    def _hear_new(self, peer: _Peer, now: float) -> None:
        """The batches of placed prompts that were not taken before."""
        for batch in peer.load.placed:
            if batch.seq > peer.heard_seq:
                peer.heard_seq = batch.seq
                placed = [Placed(TenantId(e.tenant), WorkerId(e.worker), e.anchors) for e in batch.prompts]
                self._hear_placed(placed, now)

    def _live(self, now: float) -> dict[str, _Peer]:
        return {
            router: peer for router, peer in self._peers.items() if peer.lives and now - peer.seen_at <= PEER_FADED_S
        }

    def _loads(self, now: float) -> dict[str, dict[WorkerId, PeerLoad]]:
        return {
            router: {
                WorkerId(worker): PeerLoad(max(share.prefill_tokens, 0.0), max(share.requests, 0), peer.seen_at)
                for worker, share in peer.load.workers.items()
            }
            for router, peer in self._live(now).items()
        }

    def _unexplained(self, live: Mapping[str, _Peer], now: float) -> dict[WorkerId, int]:
        own = self._own_load(now)
        out: dict[WorkerId, int] = {}
        for worker, sample in self._samples.items():
            if sample.running is None or not sample.ok or now - sample.at > LIVE_STALE_AFTER_S:
                continue
            told = own[worker].outstanding if worker in own else 0
            for peer in live.values():
                share = peer.load.workers.get(worker)
                told += share.requests if share is not None else 0
            out[worker] = sample.running + (sample.waiting or 0) - told
        return out


def _decoded(value: bytes) -> RouterLoad | None:
    """None for what cannot be read: unknown, not wrong."""
    if len(value) > LOAD_BYTES_MAX:
        return None
    try:
        return decode_load(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
