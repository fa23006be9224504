"""Documented rules of other routers, written anew from their documentation.

Where a rule needs to know what a worker caches, it reads the worker's cache without delay or loss, and where it reads
a gauge it gets the present value: better information than these systems have in practice.
"""

from __future__ import annotations

import random
from collections import OrderedDict

from simulator.fleet.names import BlockName
from simulator.fleet.policy import Choice, Policy, WorkerView, least
from simulator.fleet.workload import Request

CACHE_THRESHOLD = 0.3
BALANCE_ABS_THRESHOLD = 64
BALANCE_REL_THRESHOLD = 1.5
TREE_TOKENS_MAX = 2**26 // 4
"""`max_tree_size` 67,108,864 characters ÷ 4 a token: what the tree keeps of each worker."""


class CacheAware(Policy):
    """SGLang router, `cache_aware` (README of sgl-router: "cache-aware load balancing").

    Imbalanced (max − min > 64 and max > 1.5 × min requests): shortest queue. Else the worker whose history tree matches
    best, if more than the threshold of the prompt matches; else the worker with the smallest tree.
    """

    def __init__(self) -> None:
        self._trees: dict[int, OrderedDict[BlockName, None]] = {}
        self._turn = -1

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        self._turn += 1
        for worker in workers:
            self._trees.setdefault(worker.index, OrderedDict())
        chosen, spilled = self._pick(request, workers)
        self._insert(chosen, request)
        return Choice(chosen, spilled)

    def _pick(self, request: Request, workers: list[WorkerView]) -> tuple[int, bool]:
        loads = [worker.outstanding for worker in workers]
        most, fewest = max(loads), min(loads)
        if most - fewest > BALANCE_ABS_THRESHOLD and most > BALANCE_REL_THRESHOLD * fewest:
            return least(workers, self._turn).index, True
        prompt_blocks = max(1, request.prompt_tokens // request.block_tokens)
        there = [worker.index for worker in workers]
        matched = {index: self._matched(self._trees[index], request, prompt_blocks) for index in there}
        best = max(there, key=matched.__getitem__)
        if matched[best] / prompt_blocks > CACHE_THRESHOLD:
            return best, False
        return min(there, key=lambda index: len(self._trees[index])), False

    def _matched(self, tree: OrderedDict[BlockName, None], request: Request, prompt_blocks: int) -> int:
        count = 0
        for name in request.chain[:prompt_blocks]:
            if name not in tree:
                break
            count += 1
        return count

    def _insert(self, worker: int, request: Request) -> None:
        tree = self._trees[worker]
        for name in reversed(request.chain[: request.prompt_tokens // request.block_tokens]):
            tree[name] = None
            tree.move_to_end(name)
        while len(tree) * request.block_tokens > TREE_TOKENS_MAX:
            tree.popitem(last=False)


PREFIX_WEIGHT, QUEUE_WEIGHT, KV_WEIGHT = 3.0, 2.0, 2.0


class WeightedScorers(Policy):
    """llm-d inference scheduler: prefix-cache-scorer 3, queue-scorer 2, kv-cache-utilization-scorer 2.

    Prefix: share of the prompt's blocks cached. Queue: waiting requests, the fewest scoring 1 and the most 0, all 1
    when equal. KV: 1 − use. The sum decides; equals at random.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        waiting = [len(worker.engine.waiting) for worker in workers]
        fewest, spread = min(waiting), max(waiting) - min(waiting)
        blocks = max(1, request.hittable_blocks)
        prefix = [worker.cached_blocks(request) / blocks for worker in workers]
        scores = [
            PREFIX_WEIGHT * prefix[place]
            + QUEUE_WEIGHT * (1 - (waiting[place] - fewest) / spread if spread else 1.0)
            + KV_WEIGHT * (1 - worker.engine.cache.pinned_share)
            for place, worker in enumerate(workers)
        ]
        best = max(scores)
        chosen = self._rng.choice([place for place, score in enumerate(scores) if score == best])
        return Choice(workers[chosen].index, spilled=prefix[chosen] < max(prefix))


class BlockCost(Policy):
    """NVIDIA Dynamo's KV router: cost = overlap weight 1.0 × prefill blocks + decode blocks, the least wins.

    Prefill blocks: uncached blocks of this request and of those that wait for their first token there. Decode blocks:
    all blocks of the requests under way there and of this one. Temperature 0; equals at random.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        cached = [worker.cached_blocks(request) for worker in workers]
        costs = [
            (worker.pending_prefill_tokens + request.prompt_tokens) / request.block_tokens
            - cached[place]
            + worker.active_blocks
            for place, worker in enumerate(workers)
        ]
        lowest = min(costs)
        chosen = self._rng.choice([place for place, cost in enumerate(costs) if cost == lowest])
        return Choice(workers[chosen].index, spilled=cached[chosen] < max(cached))
