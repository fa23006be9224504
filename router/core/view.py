"""What one choice knows: the request beside its pool at this moment. Built once a request, read by score and choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from router.contract.ids import WorkerId
from router.core.fleet import Pool, RoutableWorker
from router.core.hot import HotHead
from router.core.model import ExactMatch, ExactPrompt, Fingerprint, RoutingRequest
from router.core.transfer import Hit, Source, exact_hit, pulled_hit

FAIR_SHARE: Final = 1.25
"""Requests under way above this multiple of the pool's mean are imbalance."""
FAIR_REQUESTS: Final = 2.0
"""Requests above it that are still fair: at low load counts mean little."""
HOT_SPOT_SHARE: Final = 0.05
"""Part of the uncached prefill given lately above the pool's mean that is charged: spreads what saves little (C37)."""
HEAT_HALF_LIFE_S: Final = 60.0
"""Half-life of the uncached prefill given to a worker: hot spots are a matter of minutes, not of single requests."""
BOUND_SHARE: Final = 0.5
"""Of the requests that come to a worker, those whose cache it holds: the others go elsewhere while it is busy."""
BUSY_MAX: Final = 0.8
"""What the pool's uncached prefill makes it busy counts up to here: beyond it nobody knows how long a queue lasts."""
HOME_BLOCKS: Final = 4
"""Depth at which a prefix gets its home on the ring: the turns of a conversation agree on their first 2 KiB."""
HOME_TOKENS: Final = 512
"""The same depth in tokens, for exact prompts, whose blocks are the worker's own: 2 KiB of text."""
UNKNOWN_PROMPT_TOKENS: Final = 1000
"""Assumed of a prompt without text (images, token ids)."""
HEAD_SHARE: Final = 2.0
"""Holding up to this many times the hot head is no more than holding the head: it is measured in steps of a half."""
PRIORITY_MAX: Final = 4
"""Steps of priority; each weighs the queue by √2, so that the extremes are 4 times and a quarter."""

NOTHING_EXPECTED: Mapping[WorkerId, int] = {}
NO_HOMES: Mapping[WorkerId, None] = {}
_NOTHING: Final = Hit(0, 0)


Terms = tuple[float, float, float, float, float, float, float, float]
"""A worker's net, saved, queue, pressure, imbalance, transfer, priority and replica in ms, see `score.py`."""


class View:
    __slots__ = (
        "cold_ms", "coming", "considered", "equal_hits", "fair_heat_ms", "fair_outstanding", "first_blocks", "full",
        "hashes", "head_blocks", "held", "hits", "holders", "homes", "homes_agreed",
        "hot", "hot_spot_factor", "ignore_ejection", "mean_requests", "now", "pool",
        "prompt_tokens", "prompt_work", "queue_weight", "reached", "request", "source", "spread", "terms",
        "tokens_a_block", "unfiltered",
    )  # fmt: skip

    def __init__(
        self,
        request: RoutingRequest,
        pool: Pool,
        now: float,
        held: Mapping[WorkerId, int] | Mapping[WorkerId, ExactMatch],
        hashes: Sequence[int],
        first_blocks: int,
        prompt_tokens: int,
        tokens_a_block: float,
        prompt_work: float,
        cold_ms: float,
        full: frozenset[WorkerId],
        fair_outstanding: float,
        fair_heat_ms: float,
        hot_spot_factor: float,
        mean_requests: float,
        coming: float,
        queue_weight: float,
        ignore_ejection: bool,
        unfiltered: bool,
        homes_agreed: bool,
        hot: HotHead | None,
        homes: Mapping[WorkerId, None],
        spread: int,
    ) -> None:
        self.request: Final = request
        self.pool: Final = pool
        self.now: Final = now
        self.held: Final = held
        """Blocks of the fingerprint each worker is thought to hold, or what it says it holds of an exact prompt."""
        self.hashes: Final = hashes
        """The prompt's chain of blocks: keys of the ring and of heat."""
        self.first_blocks: Final = first_blocks
        """Blocks at which a prefix gets its home."""
        self.prompt_tokens: Final = prompt_tokens
        self.tokens_a_block: Final = tokens_a_block
        self.prompt_work: Final = prompt_work
        """Prefill of the whole prompt, in tokens that have nothing before them."""
        self.cold_ms: Final = cold_ms
        """Prefill of the whole prompt on the pool's typical worker."""
        self.full = full
        self.fair_outstanding: Final = fair_outstanding
        """Requests under way above which a worker is charged for imbalance."""
        self.fair_heat_ms: Final = fair_heat_ms
        self.hot_spot_factor: Final = hot_spot_factor
        self.mean_requests: Final = mean_requests
        """Requests given to a worker of the pool lately, in the pool's forward-decayed unit."""
        self.coming: Final = coming
        """Requests that a prefill delays, for each ms of its time and each request of late on its worker."""
        self.queue_weight: Final = queue_weight
        """Of the namespace's priority."""
        self.ignore_ejection: Final = ignore_ejection
        self.unfiltered: Final = unfiltered
        """No filter beside a worker's state applies."""
        self.homes_agreed: Final = homes_agreed
        """Whether other routers rely on the ring to find what this one placed: they share no index with it."""
        self.hot: Final = hot
        """The part of the prompt that is hot enough for several homes."""
        self.homes = homes
        """Its homes; empty without a hot head, and for a prompt that goes on far beyond it on some worker."""
        self.spread: Final = spread
        """Homes that a placement rule asks for; 0 = no rule."""
        self.head_blocks = 0
        """Blocks that a copy of the head brings to a home: the hot ones, to where the deepest holder ends."""
        self.holders: Sequence[RoutableWorker] | None = None
        """The workers that hold something of the prompt, once they were looked for."""
        self.considered: list[RoutableWorker] = []
        """The eligible workers that were scored."""
        self.terms: dict[WorkerId, Terms] = {}
        """Of every worker that was scored; once scored, nothing that they rest on may change."""
        self.hits: dict[WorkerId, Hit] = {}
        self.equal_hits: dict[int, Hit] = {}
        """By identity of what is held, where the worker does not matter: nothing is loaded from another tier."""
        self.source: Source | None = None
        """The worker from which others may pull."""
        self.reached: dict[WorkerId, Hit] = {}

    def hit(self, worker: RoutableWorker) -> Hit:
        """What of the prompt the worker need not compute."""
        hit = self.hits.get(worker.id)
        if hit is None:
            held = self.held.get(worker.id)
            hit = self.hits[worker.id] = _NOTHING if held is None else self._hit_of(worker, held)
        return hit

    def reach(self, worker: RoutableWorker) -> Hit:
        """The same, with what the worker could pull from the source."""
        source, link, exact = self.source, self.pool.link, self.request.exact
        if source is None or link is None or worker.id == source.worker:
            return self.hit(worker)
        hit = self.reached.get(worker.id)
        if hit is None:
            hit = self.hit(worker)
            # What a worker that cannot tell holds is not known: it might pull what it has.
            if exact is not None and worker.id not in exact.unknown:
                hit = pulled_hit(
                    hit,
                    source,
                    prompt_tokens=self.prompt_tokens,
                    block_tokens=self.pool.policy.block_size,
                    tokens_per_s=worker.rate.tokens_per_s,
                    link=link,
                    attention=self.pool.attention,
                )
            self.reached[worker.id] = hit
        return hit

    def _hit_of(self, worker: RoutableWorker, held: int | ExactMatch) -> Hit:
        if isinstance(held, int):
            # The last token is always computed.
            return Hit(held, min(int(held * self.tokens_a_block), max(self.prompt_tokens - 1, 0)))
        hit = self.equal_hits.get(id(held))
        if hit is None:
            hit = exact_hit(
                held,
                prompt_tokens=self.prompt_tokens,
                block_tokens=self.pool.policy.block_size,
                tokens_per_s=worker.rate.tokens_per_s,
                link=self.pool.link,
                attention=self.pool.attention,
            )
            if not held.host_tokens and not held.remote_tokens:
                self.equal_hits[id(held)] = hit
        return hit

    def settle_head(self, deepest_blocks: int) -> None:
        """The deepest match is known: of a private session the homes are no concern, else it ends the hot head."""
        if self.hot is None:
            return
        if deepest_blocks > HEAD_SHARE * self.hot.blocks:
            self.homes = NO_HOMES
        else:
            self.head_blocks = max(self.hot.blocks, deepest_blocks)


def view_of(
    request: RoutingRequest,
    pool: Pool,
    matched: Mapping[WorkerId, int],
    *,
    now: float,
    alone: bool,
    routers: int = 1,
    spread: int = 0,
    expected: Mapping[WorkerId, int] = NOTHING_EXPECTED,
) -> View:
    """`matched`: blocks of the fingerprint by worker, as the approximate index says; of an exact prompt it is used for
    the workers that cannot tell.

    `alone`: whether no other router serves the pool. `routers`: how many do, each with as much traffic.
    `spread`: homes that a placement rule asks for, 0 without one.
    `expected`: blocks of an exact prompt that are on their way, by worker.
    """
    exact, fingerprint = request.exact, request.fingerprint
    held: Mapping[WorkerId, int] | Mapping[WorkerId, ExactMatch] = matched
    hashes: Sequence[int] = ()
    tokens, tokens_a_block, first = UNKNOWN_PROMPT_TOKENS, 0.0, HOME_BLOCKS
    if exact is not None:
        first = first_blocks(request, pool)
        told = exact.matches if not expected else _with_expected(exact, expected, pool.policy.block_size)
        held = _with_beliefs(exact, told, fingerprint, matched, pool) if exact.unknown and matched else told
        hashes, tokens = exact.block_hashes, max(exact.prompt_tokens, 1)
        tokens_a_block = float(pool.policy.block_size)
    elif fingerprint is not None:
        hashes = fingerprint.hashes
        tokens = max(pool.text.tokens(fingerprint.text_bytes), 1)
        tokens_a_block = fingerprint.block_bytes / pool.text.bytes_per_token
    work = pool.attention.work(tokens)
    members = len(pool.serving) or 1
    decay = 2.0 ** ((pool.heat_started_at - now) / HEAT_HALF_LIFE_S)
    policy = request.grant.policy
    full = pool.full(policy.watermark or pool.policy.watermark)
    ignore_ejection = now >= pool.ejected_until or pool.panics(now)
    hot, homes = None, NO_HOMES
    if hashes and (spread or len(pool.hot)):
        block_share = tokens_a_block / pool.capacity_tokens if pool.capacity_tokens else 0.0
        hot = pool.hot.head(hashes, first, block_share=block_share, homes_max=members, now=now)
        if spread:
            hot = pool.hot.spread(hashes, first, hot, homes=min(spread, members), now=now)
        homes = NO_HOMES if hot is None else pool.homes(hot.key, hot.homes)
    return View(
        request,
        pool,
        now,
        held,
        hashes,
        first,
        tokens,
        tokens_a_block,
        work,
        work / pool.rate.tokens_per_s * 1000.0,
        full,
        _fair_outstanding(pool, members),
        pool.heat_ms / members,
        HOT_SPOT_SHARE * decay,
        pool.heat_requests / members,
        _coming(pool, members, decay, routers),
        2.0 ** (min(max(policy.priority, -PRIORITY_MAX), PRIORITY_MAX) / 2.0) if policy.priority else 1.0,
        ignore_ejection,
        ignore_ejection and not full and not request.exclude,
        not alone and exact is None,
        hot,
        homes,
        spread,
    )


def _with_expected(
    exact: ExactPrompt, expected: Mapping[WorkerId, int], block_tokens: int
) -> Mapping[WorkerId, ExactMatch]:
    """What workers tell of themselves, and what is on its way to them. Where they told nothing, equal matches are one
    object, as in the prompt."""
    held = dict(exact.matches)
    alike: dict[int, ExactMatch] = {}
    for worker, blocks in expected.items():
        told, tokens = exact.matches.get(worker), blocks * block_tokens
        if worker in exact.unknown or (told is not None and told.device_tokens >= tokens):
            continue
        if told is not None:
            held[worker] = told.reaching(tokens)
            continue
        match = alike.get(blocks)
        if match is None:
            match = alike[blocks] = ExactMatch(tokens, expected_tokens=tokens)
        held[worker] = match
    return held


def _with_beliefs(
    exact: ExactPrompt,
    told: Mapping[WorkerId, ExactMatch],
    fingerprint: Fingerprint | None,
    matched: Mapping[WorkerId, int],
    pool: Pool,
) -> Mapping[WorkerId, ExactMatch]:
    """What workers tell of themselves, and of those that cannot what the approximate index believes, in tokens."""
    assert fingerprint is not None
    tokens_a_block = fingerprint.block_bytes / pool.text.bytes_per_token
    beliefs = {
        worker: ExactMatch(int(blocks * tokens_a_block))
        for worker, blocks in matched.items()
        if worker in exact.unknown
    }
    return {**told, **beliefs}


def first_blocks(request: RoutingRequest, pool: Pool) -> int:
    """Blocks at which the prompt's prefix gets its home and is first followed for heat."""
    return HOME_BLOCKS if request.exact is None else max(1, HOME_TOKENS // pool.policy.block_size)


def _coming(pool: Pool, members: int, decay: float, routers: int) -> float:
    """For each ms that a prefill waits and takes, and each request of late on its worker: how many it delays.

    Requests of late are turned into arrivals a ms. Of those that come BOUND_SHARE cannot avoid the worker, and on a
    busy pool each delay is handed on to the next: a queue's busy period grows as 1 ÷ (1 − busy).
    """
    a_ms = routers * decay * math.log(2.0) / (HEAT_HALF_LIFE_S * 1000.0)
    busy = pool.heat_ms / members * a_ms
    return BOUND_SHARE * a_ms / (1.0 - (busy if busy < BUSY_MAX else BUSY_MAX))


def _fair_outstanding(pool: Pool, members: int) -> float:
    """The pool's mean and a quarter more, but not above the red line unless the mean itself is (S2.3)."""
    mean = (pool.outstanding + pool.foreign_requests) / members
    fair = FAIR_SHARE * mean + FAIR_REQUESTS
    red_line = pool.policy.spill_outstanding
    return fair if fair <= red_line else min(fair, max(float(red_line), mean))
