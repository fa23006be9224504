"""Filter → Score → Pick: which worker serves a request.

Filter   workers of the pool that are ready, not ejected (unless most are), not tried before, and not above the
         watermark, which only turns away prompts the worker does not already hold for the most part.
Score    net gain in milliseconds, see `score.py`.
Pick     the worker that affinity prefers (session, else longest prefix, else home on the ring; of a hot prefix the
         least loaded of its homes), unless another is better by more than a margin: then waiting costs more than the
         cache saves (S4.3, S3.4).

Pools of up to SCAN_WORKERS_MAX workers are scored whole. In larger ones the workers that can win are scored: those that
hold most of the prompt, its homes, and the ones with the shortest wait, about 20 together whatever the pool's size.
An explanation scores all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from router.contract.ids import WorkerId
from router.core.fleet import RoutableWorker
from router.core.model import Decision, NoWorker, Shed
from router.core.pulls import source_of
from router.core.score import NET, QUEUE, best_net, candidate, predicted_ttft_ms, score
from router.core.view import Terms, View

MARGIN_SHARE: Final = 0.1
MARGIN_MS: Final = 1.0
"""Affinity yields only to a gain above 1 ms and above 10 % of a cold prefill: learnt rates and predicted progress are
off by about that much, and moving a session for noise recomputes and evicts."""
HOME_MARGIN_SHARE: Final = 0.25
"""The home of a new prefix saves nothing yet. Where other routers look for it there, it is kept unless another is a
quarter better; a router alone, or workers that tell what they hold, need no such agreement."""
MATCH_SHARE_MIN: Final = 0.1
"""A match of less of the prompt is a common head, not affinity (C37): it still counts for what it saves."""
HELD_SHARE: Final = 0.5
"""A full worker may still serve a prompt of which it holds at least this share (S0.4)."""
HOLDERS_MAX: Final = 32
"""Workers scored for what they hold: beyond it, of those that hold most, the ones with the shortest wait."""
LIGHTEST: Final = 12
"""Workers scored for their short wait in a large pool: among a dozen idle ones one fits the other terms as well."""
COLD_COPIES_REQUESTS: Final = 2.0
"""Requests more than the lightest holder's at which the first holder on the ring still serves a prefix that is not
hot: so that its copies elsewhere age out."""

SHED_FACTOR: Final = 1.25
"""Predicted TTFT may exceed the limit by the error of the prediction before a request is refused for it."""
RETRY_AFTER_BUSY_S: Final = 2
RETRY_AFTER_EMPTY_S: Final = 10
RETRY_AFTER_SHED_S_MAX: Final = 30


def choose(view: View, session_worker: WorkerId | None, *, explain: bool) -> Decision:
    """The decision for one request. Raises NoWorker when the pool has none to offer, Shed when all are too busy."""
    routing = view.pool.policy.routing
    if routing in _BLIND_TO_PREFIXES:
        view.full = frozenset()
    elif view.request.may_pull and view.held:
        view.holders = holders = _holders(view)
        view.source = source_of(view, [worker for worker in holders if not exclusion(view, worker)])
    decision = _PICKS[routing](view, session_worker)
    worker = view.pool.by_id[decision.worker]
    if view.held:
        hit = view.reach(worker)
        if hit.pulled:
            decision.source = view.source
        if view.holders is None:
            view.holders = _holders(view)
        decision.best_hit_tokens = max(hit.tokens, _deepest(view, view.holders))
        decision.matched_blocks = hit.blocks
        decision.predicted_hit_tokens = hit.tokens
        decision.expected_tokens = hit.expected_tokens
        decision.loaded_tokens = hit.loaded_tokens
    decision.predicted_prompt_tokens = view.prompt_tokens
    terms = score(view, worker)
    decision.predicted_ttft_ms = predicted_ttft_ms(view, terms)
    decision.predicted_queue_ms = terms[QUEUE]
    decision.spread = view.spread
    if view.request.exclude:
        decision.reason, decision.spill = "retry", "retry"
    elif view.request.grant.policy.shed_over_slo and not view.request.admitted:
        _shed_if_hopeless(view)
    if explain:
        decision.candidates = [candidate(view, each, exclusion(view, each)) for each in view.pool.workers]
    return decision


def exclusion(view: View, worker: RoutableWorker) -> str:
    """The filter that turns the worker away: a state, `ejected`, `tried`, `full`, or "" for none."""
    if worker.state != "ready":
        return worker.state
    if worker.id in view.request.exclude:
        return "tried"
    if not view.ignore_ejection and worker.health.ejected(view.now):
        return "ejected"
    if worker.id in view.full and not _holds(view, worker):
        return "full"
    return ""


def _shed_if_hopeless(view: View) -> None:
    """Raises Shed when even the best worker's predicted TTFT is beyond the limit, with the time for that to drain.

    A prompt whose own prefill takes longer than the limit is refused only for a wait above the limit: to send it away
    and back would not make it timely.
    """
    limit_ms = view.request.grant.policy.ttft_slo_ms
    if limit_ms is None:
        return
    best_ms, wait_ms = min((predicted_ttft_ms(view, terms), terms[QUEUE]) for terms in _terms(view))
    late_ms = best_ms - limit_ms * SHED_FACTOR
    if late_ms > 0 and (wait_ms >= late_ms or wait_ms > limit_ms):
        drain_s = math.ceil(min(best_ms - limit_ms, wait_ms) / 1000.0)
        raise Shed(min(max(drain_s, 1), RETRY_AFTER_SHED_S_MAX))


def _terms(view: View) -> Iterator[Terms]:
    return (score(view, worker) for worker in view.considered)


def _filter(view: View) -> list[RoutableWorker]:
    """Eligible workers. When every worker left is full, the watermark halts nothing (C51)."""
    serving = view.pool.serving
    if serving and view.unfiltered:
        return serving
    eligible = [worker for worker in serving if not exclusion(view, worker)]
    if not eligible and view.full:
        view.full = frozenset()
        eligible = [worker for worker in serving if not exclusion(view, worker)]
    if not eligible:
        retry_after_s = RETRY_AFTER_BUSY_S if view.pool.workers else RETRY_AFTER_EMPTY_S
        raise NoWorker("No worker is available for this model at the moment. Please retry.", retry_after_s)
    return eligible


def _consider(view: View, holders: Sequence[RoutableWorker]) -> list[RoutableWorker]:
    """The eligible workers that can win: all of a small pool, else holders, homes and the lightest."""
    pool = view.pool
    if pool.order is None:
        return _filter(view)
    found = dict.fromkeys(holders)
    if view.hashes:
        home = pool.ring.home(_home_key(view, holders))
        found.update(dict.fromkeys(pool.by_id[each] for each in ([home] if home is not None else [])))
        found.update(dict.fromkeys(pool.by_id[each] for each in _some(view.homes)))
    eligible = [worker for worker in found if not exclusion(view, worker)]
    light = 0
    for place in pool.order.places():
        worker = pool.workers[place]
        if worker not in found and not exclusion(view, worker):
            eligible.append(worker)
            light += 1
            if light == LIGHTEST:
                break
    return eligible or _filter(view)


def _some(homes: Mapping[WorkerId, None]) -> Iterable[WorkerId]:
    """Homes to score: of very many the lightest are scored anyway."""
    return homes if len(homes) <= HOLDERS_MAX else ()


def _pick_by_gain(view: View, session_worker: WorkerId | None) -> Decision:
    holders: Sequence[RoutableWorker] = ()
    if view.held:
        view.holders = holders = _holders(view)
    if view.hot is not None:
        view.settle_head(max([view.hit(worker).blocks for worker in holders], default=0))
    view.considered = considered = _consider(view, holders)
    preferred, reason = _preference(view, holders, session_worker)
    best = best_net(view, considered)
    margin = _margin_ms(view, reason)
    enough = best - margin
    if preferred is not None and _eligible(view, preferred) and score(view, preferred)[NET] >= enough:
        return _decision(view, preferred, reason, preferred)
    near = [worker for worker in considered if view.terms[worker.id][NET] >= enough]
    if preferred is None:
        return _decision(view, _least_loaded(view, near), "least_outstanding", None)
    spill = _spill(view, preferred)
    if reason == "home" and spill == "load" and not view.homes_agreed:
        # Nothing was cached at home and nobody looks for it there: no affinity was given up.
        return _decision(view, _best_of(view, near), "least_outstanding", None)
    reason = "spill_watermark" if spill == "watermark" else "spill_load" if spill == "load" else reason
    return _decision(view, _best_of(view, near), reason, preferred, spill=spill)


def _eligible(view: View, worker: RoutableWorker) -> bool:
    return worker.state == "ready" if view.unfiltered else not exclusion(view, worker)


def _margin_ms(view: View, reason: str) -> float:
    """How much better another worker must be than the one affinity prefers."""
    share = HOME_MARGIN_SHARE if reason == "home" and view.homes_agreed else MARGIN_SHARE
    if reason == "session" and not view.hashes and view.request.fingerprint is None:
        # What the session's worker holds cannot be matched without text: all of it is assumed.
        share = 1.0
    margin_ms = share * view.cold_ms
    return margin_ms if margin_ms > MARGIN_MS else MARGIN_MS


def _holders(view: View) -> list[RoutableWorker]:
    """The workers that hold something of the prompt, at most HOLDERS_MAX; of more, the lightest that hold most."""
    by_id, held = view.pool.by_id, view.held
    if len(held) <= HOLDERS_MAX or view.pool.order is None:
        return [by_id[worker] for worker in held if worker in by_id]
    # Workers that hold the same mostly share one object: those are told apart, not the workers.
    most = max({id(what): what for what in held.values()}.values(), key=_depth)
    deepest = {worker: None for worker, what in held.items() if what is most or what == most}
    if len(deepest) <= HOLDERS_MAX:
        return [by_id[worker] for worker in deepest if worker in by_id]
    return _first(HOLDERS_MAX, view, lambda worker: worker.id in deepest)


def _depth(held: object) -> int:
    if isinstance(held, int):
        return held
    return held.device_tokens + held.host_tokens + held.remote_tokens  # type: ignore[attr-defined,no-any-return]


def _first(count: int, view: View, takes: Callable[[RoutableWorker], bool]) -> list[RoutableWorker]:
    found: list[RoutableWorker] = []
    for worker in _by_wait(view):
        if takes(worker):
            found.append(worker)
            if len(found) == count:
                break
    return found


def _by_wait(view: View) -> Iterator[RoutableWorker]:
    workers, order = view.pool.workers, view.pool.order
    return iter(workers) if order is None else (workers[place] for place in order.places())


def _preference(
    view: View, holders: Sequence[RoutableWorker], session_worker: WorkerId | None
) -> tuple[RoutableWorker | None, str]:
    """Where affinity alone would send the request, and the reason: session, prefix, home (S2.1)."""
    by_id = view.pool.by_id
    if session_worker is not None and session_worker in by_id:
        return by_id[session_worker], "session"
    deepest = _deepest(view, holders)
    home = _idle_home(view) if view.homes else None
    if home is not None:
        return home, "prefix" if view.hit(home).tokens == deepest > 0 else "home"
    if deepest and deepest >= MATCH_SHARE_MIN * view.prompt_tokens:
        return _among_holders(view, [worker for worker in holders if view.hit(worker).tokens == deepest]), "prefix"
    if not view.hashes:
        return None, "home"
    return _home(view, _home_key(view, holders)), "home"


def _deepest(view: View, holders: Sequence[RoutableWorker]) -> int:
    """The longest match in tokens."""
    return max([view.hit(worker).tokens for worker in holders]) if holders else 0


def _idle_home(view: View) -> RoutableWorker | None:
    """The home of a hot prefix with the fewest requests, whether filled or not; equals in turn."""
    by_id = view.pool.by_id
    homes = [by_id[home] for home in view.homes if not exclusion(view, by_id[home])]
    return _in_turn(view, _idlest(homes)) if homes else None


def _among_holders(view: View, most: list[RoutableWorker]) -> RoutableWorker:
    """Which of the workers with the longest match: of those about as light as the lightest, the first on the ring."""
    if len(most) == 1:
        return most[0]
    usable = [worker for worker in most if not exclusion(view, worker)] or most
    least = min(_outstanding(worker) for worker in usable)
    light = {worker.id for worker in usable if _outstanding(worker) <= least + COLD_COPIES_REQUESTS}
    return _home(view, _home_key(view, ()), lambda worker: worker.id in light) or usable[0]


def _home_key(view: View, holders: Sequence[RoutableWorker]) -> int:
    """The ring key of a prompt: a fixed depth, or just past a head that many prompts share. It has a block at least."""
    shared = max([view.hit(worker).blocks for worker in holders]) if holders else 0
    return view.hashes[min(len(view.hashes), max(view.first_blocks, shared + 1)) - 1]


def _home(view: View, key: int, takes: Callable[[RoutableWorker], bool] | None = None) -> RoutableWorker | None:
    by_id = view.pool.by_id
    home = view.pool.ring.home(key, None if takes is None else (lambda worker: takes(by_id[worker])))
    return None if home is None else by_id[home]


def _best_of(view: View, near: list[RoutableWorker]) -> RoutableWorker:
    """Of workers about equally good: the longest match, then the least load, then the next on the ring."""
    if not view.held:
        return _least_loaded(view, near)
    longest = max([view.hit(worker).tokens for worker in near])
    return _least_loaded(view, [worker for worker in near if view.hit(worker).tokens == longest])


def _least_loaded(view: View, workers: list[RoutableWorker]) -> RoutableWorker:
    """The fewest requests under way; equals by the ring from the prompt's key, or in turn without one (S0.7, C39)."""
    idle = _idlest(workers) if len(workers) > 1 else workers
    if len(idle) == 1:
        return idle[0]
    if not view.hashes:
        return _in_turn(view, idle)
    names = {worker.id for worker in idle}
    return _home(view, _home_key(view, ()), lambda worker: worker.id in names) or idle[0]


def _idlest(workers: list[RoutableWorker]) -> list[RoutableWorker]:
    counts = [worker.load.outstanding + worker.foreign_requests for worker in workers]
    least = min(counts)
    return [worker for worker, count in zip(workers, counts, strict=True) if count == least]


def _outstanding(worker: RoutableWorker) -> float:
    return worker.load.outstanding + worker.foreign_requests


def _in_turn(view: View, workers: list[RoutableWorker]) -> RoutableWorker:
    worker = workers[view.pool.turns % len(workers)]
    view.pool.turns += 1
    return worker


def _pick_round_robin(view: View, _: WorkerId | None) -> Decision:
    view.considered = _filter(view)
    return _decision(view, _in_turn(view, view.considered), "round_robin", None)


def _pick_least_outstanding(view: View, _: WorkerId | None) -> Decision:
    view.considered = _filter(view)
    return _decision(view, _in_turn(view, _idlest(view.considered)), "least_outstanding", None)


def _pick_by_ring(view: View, _: WorkerId | None) -> Decision:
    """Pure consistent hashing of the first blocks: load moves nothing, an ineligible home goes to its successor."""
    view.considered = eligible = _filter(view)
    home = _home(view, _home_key(view, ())) if view.hashes else None
    if home is None:
        return _decision(view, _in_turn(view, eligible), "least_outstanding", None)
    if not exclusion(view, home):
        return _decision(view, home, "home", home)
    worker = _home(view, _home_key(view, ()), lambda each: not exclusion(view, each)) or eligible[0]
    spill = _spill(view, home)
    return _decision(view, worker, "spill_watermark" if spill == "watermark" else "home", home, spill=spill)


_PICKS: dict[str, Callable[[View, WorkerId | None], Decision]] = {
    "tidemark": _pick_by_gain,
    "round_robin": _pick_round_robin,
    "least_outstanding": _pick_least_outstanding,
    "ring": _pick_by_ring,
}

_BLIND_TO_PREFIXES: Final = frozenset({"round_robin", "least_outstanding"})
"""Watermarks speak of new prefixes: through them these rules would come to prefer the workers that hold a prefix."""

_SPILL_OF_EXCLUSION: Final = {
    "drain": "drain",
    "maintenance": "drain",
    "ejected": "breaker",
    "down": "breaker",
    "full": "watermark",
    "tried": "retry",
}


def _spill(view: View, preferred: RoutableWorker) -> str:
    """Why the preferred worker was left: the filter that turned it away, else load."""
    return _SPILL_OF_EXCLUSION.get(exclusion(view, preferred), "load")


def _decision(
    view: View, worker: RoutableWorker, reason: str, preferred: RoutableWorker | None, *, spill: str = ""
) -> Decision:
    return Decision(view.request, worker.id, worker.url, reason, spill, None if preferred is None else preferred.id)


def _holds(view: View, worker: RoutableWorker) -> bool:
    return worker.id in view.held and view.hit(worker).tokens >= HELD_SHARE * view.prompt_tokens
