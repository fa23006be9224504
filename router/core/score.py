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

from router.contract.telemetry import Candidate
from router.core.fleet import RoutableWorker
from router.core.view import View

MISS_WEIGHT = 3.0
"""A miss on a busy worker is charged up to four times its own prefill (its own once, and this): in a fleet
simulation over public traces that raised goodput by 10 % over counting its own latency alone."""
BUSY_REQUESTS = 4.0
"""Requests under way at which a worker counts as half busy."""
DECODE_INTERFERENCE_MS = 1.5
"""Delay of a prefill by each request that decodes beside it."""
IMBALANCE_SHARE = 0.1
"""Part of a cold prefill charged for each request above the fair share or the red line."""

Terms = tuple[float, float, float, float, float, float, float]
"""saved, queue, pressure, imbalance, transfer, priority and replica in ms."""


def score(view: View, worker: RoutableWorker) -> Terms:
    load = worker.load
    rate = worker.rate.tokens_per_s
    outstanding = load.outstanding + worker.foreign_requests
    uncached_tokens = float(view.prompt_tokens)
    queue = imbalance = transfer = priority = replica = 0.0
    held_blocks = 0
    if worker.id in view.held:
        hit = view.hit(worker)
        held_blocks, transfer = hit.blocks, hit.transfer_ms
        uncached_tokens -= hit.tokens * worker.credit.share
    uncached_ms = uncached_tokens / rate * 1000.0
    pressure = uncached_ms * _evicted_share(worker, uncached_tokens)
    if outstanding:
        queue = (load.remaining_tokens(tokens_per_s=rate, now=view.now) + worker.peer_tokens) / rate * 1000.0
        queue += (load.decoding + worker.foreign_requests) * DECODE_INTERFERENCE_MS
        priority = queue * (view.queue_weight - 1.0)
        pressure += uncached_ms * MISS_WEIGHT * outstanding / (outstanding + BUSY_REQUESTS)
        above = outstanding - view.fair_outstanding
        if above > 0:
            imbalance = above * (IMBALANCE_SHARE * view.cold_ms + DECODE_INTERFERENCE_MS)
    hot_ms = worker.heat_ms - view.fair_heat_ms
    if hot_ms > 0:
        imbalance += hot_ms * view.hot_spot_factor
    if held_blocks < view.head_blocks and worker.id in view.homes:
        replica = (view.head_blocks - held_blocks) * view.tokens_a_block / rate * 1000.0
    return view.cold_ms - uncached_ms, queue, pressure, imbalance, transfer, priority, replica


def net_of(terms: Terms) -> float:
    saved, queue, pressure, imbalance, transfer, priority, replica = terms
    return saved - queue - pressure - imbalance - transfer - priority + replica


def predicted_ttft_ms(view: View, terms: Terms) -> float:
    """Queue, transfer and uncached prefill."""
    return terms[1] + terms[4] + view.cold_ms - terms[0]


def candidate(view: View, worker: RoutableWorker, excluded: str) -> Candidate:
    """The worker's terms for an explanation."""
    terms = score(view, worker)
    return Candidate(
        worker=worker.id,
        matched_tokens=view.hit(worker).tokens,
        saved_ms=terms[0],
        queue_ms=terms[1],
        pressure_ms=terms[2],
        imbalance_ms=terms[3],
        transfer_ms=terms[4],
        priority_ms=terms[5],
        replica_ms=terms[6],
        net_ms=net_of(terms),
        outstanding=int(worker.load.outstanding + worker.foreign_requests),
        excluded=excluded,
    )


def _evicted_share(worker: RoutableWorker, uncached_tokens: float) -> float:
    """Expected recomputation of what the miss evicts, as a share of its own prefill (S3.7): the part beyond the free
    room times the reuse expected of what goes for it, or the measured churn where that is more."""
    free_tokens = worker.free_tokens
    if uncached_tokens <= free_tokens:
        return worker.churn
    return max(worker.churn, worker.reuse * (1.0 - free_tokens / uncached_tokens))
