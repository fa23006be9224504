"""What one choice knows: the request beside its pool at this moment. Built once a request, read by score and choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from router.contract.ids import WorkerId
from router.core.fleet import Pool, RoutableWorker
from router.core.hot import HotHead
from router.core.model import ExactMatch, ExactPrompt, Fingerprint, RoutingRequest
from router.core.transfer import Hit, exact_hit

FAIR_SHARE = 1.25
"""Requests under way above this multiple of the pool's mean are imbalance."""
FAIR_REQUESTS = 2.0
"""Requests above it that are still fair: at low load counts mean little."""
HOT_SPOT_SHARE = 0.05
"""Part of the uncached prefill given lately above the pool's mean that is charged: spreads what saves little (C37)."""
HEAT_HALF_LIFE_S = 60.0
"""Half-life of the uncached prefill given to a worker: hot spots are a matter of minutes, not of single requests."""
HOME_BLOCKS = 4
"""Depth at which a prefix gets its home on the ring: the turns of a conversation agree on their first 2 KiB."""
HOME_TOKENS = 512
"""The same depth in tokens, for exact prompts, whose blocks are the worker's own: 2 KiB of text."""
UNKNOWN_PROMPT_TOKENS = 1000
"""Assumed of a prompt without text (images, token ids)."""
HEAD_SHARE = 2.0
"""Holding up to this many times the hot head is no more than holding the head: it is measured in steps of a half."""
PRIORITY_MAX = 4
"""Steps of priority; each weighs the queue by √2, so that the extremes are 4 times and a quarter."""

NO_HOMES: Mapping[WorkerId, None] = {}
_NOTHING = Hit(0, 0)


Terms = tuple[float, float, float, float, float, float, float, float]
"""A worker's net, saved, queue, pressure, imbalance, transfer, priority and replica in ms, see `score.py`."""


class View(msgspec.Struct, eq=False):
    request: RoutingRequest
    pool: Pool
    now: float
    held: Mapping[WorkerId, int] | Mapping[WorkerId, ExactMatch]
    """Blocks of the fingerprint each worker is thought to hold, or what it says it holds of an exact prompt."""
    hashes: Sequence[int]
    """The prompt's chain of blocks: keys of the ring and of heat."""
    first_blocks: int
    """Blocks at which a prefix gets its home."""
    prompt_tokens: int
    tokens_a_block: float
    cold_ms: float
    """Prefill of the whole prompt on the pool's typical worker."""
    full: frozenset[WorkerId]
    fair_outstanding: float
    """Requests under way above which a worker is charged for imbalance."""
    fair_heat_ms: float
    hot_spot_factor: float
    queue_weight: float
    """Of the namespace's priority."""
    ignore_ejection: bool
    unfiltered: bool
    """No filter beside a worker's state applies."""
    homes_agreed: bool
    """Whether other routers rely on the ring to find what this one placed: they share no index with it."""
    hot: HotHead | None
    """The part of the prompt that is hot enough for several homes."""
    homes: Mapping[WorkerId, None]
    """Its homes; empty without a hot head, and for a prompt that goes on far beyond it on some worker."""
    head_blocks: int = 0
    """Blocks that a copy of the head brings to a home: the hot ones, to where the deepest holder ends."""
    considered: list[RoutableWorker] = []
    """The eligible workers that were scored."""
    terms: dict[WorkerId, Terms] = {}
    """Of every worker that was scored; once scored, nothing that they rest on may change."""
    hits: dict[WorkerId, Hit] = {}

    def hit(self, worker: RoutableWorker) -> Hit:
        """What of the prompt the worker need not compute."""
        hit = self.hits.get(worker.id)
        if hit is None:
            held = self.held.get(worker.id)
            hit = self.hits[worker.id] = _NOTHING if held is None else self._hit_of(worker, held)
        return hit

    def _hit_of(self, worker: RoutableWorker, held: int | ExactMatch) -> Hit:
        if isinstance(held, int):
            # The last token is always computed.
            return Hit(held, min(int(held * self.tokens_a_block), max(self.prompt_tokens - 1, 0)))
        return exact_hit(
            held,
            prompt_tokens=self.prompt_tokens,
            block_tokens=self.pool.policy.block_size,
            tokens_per_s=worker.rate.tokens_per_s,
            link=self.pool.link,
        )

    def settle_head(self, deepest_blocks: int) -> None:
        """The deepest match is known: of a private session the homes are no concern, else it ends the hot head."""
        if self.hot is None:
            return
        if deepest_blocks > HEAD_SHARE * self.hot.blocks:
            self.homes = NO_HOMES
        else:
            self.head_blocks = max(self.hot.blocks, deepest_blocks)


def view_of(request: RoutingRequest, pool: Pool, matched: Mapping[WorkerId, int], *, now: float, alone: bool) -> View:
    """`matched`: blocks of the fingerprint by worker, as the approximate index says; of an exact prompt it is used for
    the workers that cannot tell.

    `alone`: whether no other router serves the pool.
    """
    exact, fingerprint = request.exact, request.fingerprint
    held: Mapping[WorkerId, int] | Mapping[WorkerId, ExactMatch] = matched
    hashes: Sequence[int] = ()
    tokens, tokens_a_block, first = UNKNOWN_PROMPT_TOKENS, 0.0, HOME_BLOCKS
    if exact is not None:
        first = first_blocks(request, pool)
        held = _with_beliefs(exact, fingerprint, matched, pool) if exact.unknown and matched else exact.matches
        hashes, tokens = exact.block_hashes, max(exact.prompt_tokens, 1)
        tokens_a_block = float(pool.policy.block_size)
    elif fingerprint is not None:
        hashes = fingerprint.hashes
        tokens = max(pool.text.tokens(fingerprint.text_bytes), 1)
        tokens_a_block = fingerprint.block_bytes / pool.text.bytes_per_token
    members = len(pool.serving) or 1
    policy = request.grant.policy
    full = pool.full(policy.watermark or pool.policy.watermark)
    ignore_ejection = now >= pool.ejected_until or pool.panics(now)
    hot, homes = None, NO_HOMES
    if hashes and pool.hot.any_hot(hashes, first):
        block_share = tokens_a_block / pool.capacity_tokens if pool.capacity_tokens else 0.0
        hot = pool.hot.head(hashes, first, block_share=block_share, homes_max=members, now=now)
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
        tokens / pool.rate.tokens_per_s * 1000.0,
        full,
        _fair_outstanding(pool, members),
        pool.heat_ms / members,
        HOT_SPOT_SHARE * 2.0 ** ((pool.heat_started_at - now) / HEAT_HALF_LIFE_S),
        2.0 ** (min(max(policy.priority, -PRIORITY_MAX), PRIORITY_MAX) / 2.0) if policy.priority else 1.0,
        ignore_ejection,
        ignore_ejection and not full and not request.exclude,
        not alone and exact is None,
        hot,
        homes,
    )


def _with_beliefs(
    exact: ExactPrompt, fingerprint: Fingerprint | None, matched: Mapping[WorkerId, int], pool: Pool
) -> Mapping[WorkerId, ExactMatch]:
    """What workers tell of themselves, and of those that cannot what the approximate index believes, in tokens."""
    assert fingerprint is not None
    tokens_a_block = fingerprint.block_bytes / pool.text.bytes_per_token
    beliefs = {
        worker: ExactMatch(int(blocks * tokens_a_block))
        for worker, blocks in matched.items()
        if worker in exact.unknown
    }
    return {**exact.matches, **beliefs}


def first_blocks(request: RoutingRequest, pool: Pool) -> int:
    """Blocks at which the prompt's prefix gets its home and is first followed for heat."""
    return HOME_BLOCKS if request.exact is None else max(1, HOME_TOKENS // pool.policy.block_size)


def _fair_outstanding(pool: Pool, members: int) -> float:
    """The pool's mean and a quarter more, but not above the red line unless the mean itself is (S2.3)."""
    mean = (pool.outstanding + pool.foreign_requests) / members
    fair = FAIR_SHARE * mean + FAIR_REQUESTS
    red_line = pool.policy.spill_outstanding
    return fair if fair <= red_line else min(fair, max(float(red_line), mean))
