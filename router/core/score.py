"""Score: what sending a request to a worker gains and costs, every term in milliseconds (S1.4, S3.4).

net = saved − queue − pressure − imbalance − transfer − priority + replica
saved      cold prefill of this prompt on the pool's mean worker, less the prefill it still needs here
queue      wait for the prefill ahead (less its predicted progress), slowed by requests that decode
pressure   what a miss costs others: it delays requests under way and evicts what they would reuse
imbalance  requests above the fair share, and uncached prefill given here lately above the pool's mean
transfer   loading what a host or shared tier holds (S3.5)
priority   what the namespace's priority adds to the queue or takes off (S4.2)
replica    the part of a miss that fills another home of a hot prefix: it is for all that follow (S3.6)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from router.contract.telemetry import Candidate
from router.core.fleet import Burden, RoutableWorker
from router.core.ledger import PROGRESS_SHARE_MAX
from router.core.view import Terms, View

NET, SAVED, QUEUE, TRANSFER = 0, 1, 2, 5
"""Places in `Terms`."""

MISS_WEIGHT = 3.0
"""A miss on a busy worker is charged up to four times its own prefill (its own once, and this): in a fleet
simulation over public traces that raised goodput by 10 % over counting its own latency alone."""
BUSY_REQUESTS = 4.0
"""Requests under way at which a worker counts as half busy."""
DECODE_INTERFERENCE_MS = 1.5
"""Delay of a prefill by each request that decodes beside it."""
IMBALANCE_SHARE = 0.1
"""Part of a cold prefill charged for each request above the fair share or the red line."""


def score(view: View, worker: RoutableWorker) -> Terms:
    """The worker's terms, kept in the view."""
    terms = view.terms.get(worker.id)
    if terms is None:
        best_net(view, (worker,))
        terms = view.terms[worker.id]
    return terms


def best_net(view: View, workers: Iterable[RoutableWorker]) -> float:
    """Scores workers into `view.terms`; the best net gain in ms.

    One loop without calls, over what `_burden` remembers: it runs for each worker of each request.
    """
    terms_of, held, now, cold_ms = view.terms, view.held, view.now, view.cold_ms
    fair_outstanding, fair_heat_ms = view.fair_outstanding, view.fair_heat_ms
    uncached_tokens: float = view.prompt_tokens
    special = bool(held) or bool(view.homes) or view.queue_weight != 1.0
    above_ms = IMBALANCE_SHARE * cold_ms + DECODE_INTERFERENCE_MS
    transfer = priority = replica = 0.0
    best = -math.inf
    for worker in workers:
        outstanding, miss_weight, wait_ms, most, left, least, at, free, heat_ms = worker.burden or _burden(worker)
        rate = worker.rate.tokens_per_s
        if special:
            uncached_tokens, transfer, replica = _found(view, worker)
        uncached_ms = uncached_tokens / rate * 1000.0
        pressure = uncached_ms * miss_weight
        if uncached_tokens > free:
            pressure += uncached_ms * _evicted_share(worker, uncached_tokens)
        queue = imbalance = 0.0
        if outstanding:
            left -= rate * (now - at)
            if left < least:
                left = least
            elif left > most:
                left = most
            queue = left / rate * 1000.0 + wait_ms
            if outstanding > fair_outstanding:
                imbalance = (outstanding - fair_outstanding) * above_ms
        if heat_ms > fair_heat_ms:
            imbalance += (heat_ms - fair_heat_ms) * view.hot_spot_factor
        saved = cold_ms - uncached_ms
        net = saved - queue - pressure - imbalance
        if special:
            priority = queue * (view.queue_weight - 1.0)
            net = net - transfer - priority + replica
        terms_of[worker.id] = (net, saved, queue, pressure, imbalance, transfer, priority, replica)
        if net > best:
            best = net
    return best


def _burden(worker: RoutableWorker) -> Burden:
    """What of a worker's score is the same for every request until its load or its samples change."""
    load, foreign = worker.load, worker.foreign_requests
    pending, outstanding = load.pending_tokens, load.outstanding + foreign
    burden = worker.burden = (
        outstanding,
        worker.churn + MISS_WEIGHT * outstanding / (outstanding + BUSY_REQUESTS),
        (load.decoding + foreign) * DECODE_INTERFERENCE_MS,
        # `Load.remaining_tokens` and the peers' tokens, but for the progress since `progress_at`.
        pending + worker.peer_tokens,
        pending - load.progress_tokens + worker.peer_tokens,
        pending * (1.0 - PROGRESS_SHARE_MAX) + worker.peer_tokens,
        load.progress_at,
        worker.free_tokens,
        worker.heat_ms,
    )
    return burden


def _found(view: View, worker: RoutableWorker) -> tuple[float, float, float]:
    """Uncached tokens, and transfer and replica in ms: what depends on what the worker holds."""
    uncached_tokens, transfer, replica = float(view.prompt_tokens), 0.0, 0.0
    held_blocks = 0
    if worker.id in view.held:
        hit = view.hit(worker)
        held_blocks, transfer = hit.blocks, hit.transfer_ms
        uncached_tokens -= hit.tokens * worker.credit.share
    if held_blocks < view.head_blocks and worker.id in view.homes:
        replica = (view.head_blocks - held_blocks) * view.tokens_a_block / worker.rate.tokens_per_s * 1000.0
    return uncached_tokens, transfer, replica


def predicted_ttft_ms(view: View, terms: Terms) -> float:
    """Queue, transfer and uncached prefill."""
    return terms[QUEUE] + terms[TRANSFER] + view.cold_ms - terms[SAVED]


def candidate(view: View, worker: RoutableWorker, excluded: str) -> Candidate:
    """The worker's terms for an explanation."""
    net, saved, queue, pressure, imbalance, transfer, priority, replica = score(view, worker)
    return Candidate(
        worker=worker.id,
        matched_tokens=view.hit(worker).tokens,
        saved_ms=saved,
        queue_ms=queue,
        pressure_ms=pressure,
        imbalance_ms=imbalance,
        transfer_ms=transfer,
        priority_ms=priority,
        replica_ms=replica,
        net_ms=net,
        outstanding=int(worker.load.outstanding + worker.foreign_requests),
        excluded=excluded,
    )


def _evicted_share(worker: RoutableWorker, uncached_tokens: float) -> float:
    """Expected recomputation of what the miss evicts, as a share of its own prefill (S3.7), beyond the measured churn:
    the part above the free room times the reuse expected of what goes for it."""
    return max(0.0, worker.reuse * (1.0 - worker.free_tokens / uncached_tokens) - worker.churn)
