"""The twelve lines of S1.9, each a function of the facts: green with its evidence, red with what is wrong, or unknown.

Never green without evidence: what was not seen is unknown, however good it looks. Pure: no database, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from controlplane.checklist.facts import Facts, PoolFact
from router.contract.histogram import quantile

GREEN, RED, UNKNOWN = "green", "red", "unknown"
SAMPLES_MIN = 20
"""Requests, prompts or first tokens below which nothing is said."""
KNOWN_SHARE_MIN = 0.95
"""Answers whose worker names its cached tokens."""
FAILED_SHARE_MAX = 0.02
ONE_HOME_SHARE = 0.95
"""From here on one worker serves a prefix alone."""
CANARY_OLD_AFTER = timedelta(hours=2)
TELLS_NO_USAGE = frozenset({"embeddings"})
"""Endpoints whose canary stays inconclusive while the worker is busy."""
OUR_ERRORS = ("no_worker", "upstream_error", "upstream_timeout", "upstream_died", "internal")
ORDER_LINTS = frozenset({"dynamic_before_static", "placeholder_early"})
NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the list. `evidence` is a sentence with figures; `path` is where one acts on it."""

    key: str
    title: str
    state: str
    evidence: str
    path: str
    action: str


@dataclass(frozen=True, slots=True)
class Verdict:
    state: str
    evidence: str


def prompt_order(facts: Facts) -> Verdict:
    if not facts.templates:
        return Verdict(UNKNOWN, "No prompt template is published: nobody can tell in which order prompts are made.")
    wrong = [item.name for item in facts.templates if ORDER_LINTS & set(item.accepted_lints)]
    if wrong:
        return Verdict(RED, f"Published with parts in the wrong order, accepted by hand: {_named(wrong)}.")
    count = len(facts.templates)
    return Verdict(GREEN, f"{_counted(count, 'published version')}: static before semi-static before dynamic in each.")


def dynamic_last(facts: Facts) -> Verdict:
    breakers = facts.open_of("prefix_breaker")
    if breakers:
        return Verdict(RED, f"{breakers[0].subject}: {breakers[0].message}")
    if facts.prompts_looked_at < SAMPLES_MIN:
        return Verdict(UNKNOWN, f"{_counted(facts.prompts_looked_at, 'prompt')} looked at in the last 2 h; 20 needed.")
    share = facts.prompts_cut / facts.prompts_looked_at
    return Verdict(
        GREEN,
        f"{facts.prompts_looked_at:,} prompts looked at in the last 2 h, {_percent(share)} cut off early.",
    )


def token_blocks(facts: Facts) -> Verdict:
    wrong = facts.open_of("block_size_mismatch", "parity_mismatch", "exact_mode_off")
    if wrong:
        return Verdict(RED, f"{wrong[0].subject}: {wrong[0].message}")
    if not facts.pools:
        return Verdict(UNKNOWN, "No worker takes requests.")
    by_text = [pool.slug for pool in facts.pools if not pool.tokenizer]
    if by_text:
        return Verdict(RED, f"Matched by text, not by token block, because no tokenizer is named: {_named(by_text)}.")
    untold = [worker.worker_id for worker in facts.workers if worker.block_size is None]
    if untold or not facts.requests.get("requests"):
        why = f"{_named(untold)} did not tell their block size" if untold else "no request was routed in 15 min"
        return Verdict(UNKNOWN, f"Tokenizers are named, but {why}.")
    sizes = ", ".join(f"{pool.slug} {pool.block_size}" for pool in facts.pools)
    return Verdict(GREEN, f"Blocks of the workers' own size (tokens): {sizes}; every router that is heard is exact.")


def weighing(facts: Facts) -> Verdict:
    wrong = [f"{pool.slug} ({pool.routing.replace('_', ' ')})" for pool in facts.pools if pool.routing != "tidemark"]
    if wrong:
        return Verdict(RED, f"Routed without weighing: {_named(wrong)}.")
    if not facts.decisions:
        return Verdict(UNKNOWN, "No decision was recorded in the last hour.")
    candidates = [each for decision in facts.decisions for each in decision.get("candidates", ())]
    seen = {
        "match": any(each.get("saved_ms") for each in candidates),
        "queue": any(each.get("queue_ms") for each in candidates),
        "memory": any(each.get("pressure_ms") or each.get("kv_use") is not None for each in candidates),
        "SLO": bool(facts.requests.get("slo_known")),
    }
    missing = [name for name, was_seen in seen.items() if not was_seen]
    of = f"{_counted(len(facts.decisions), 'decision')} of the last hour"
    if missing:
        return Verdict(UNKNOWN, f"In {of} this was never weighed: {', '.join(missing)}.")
    return Verdict(GREEN, f"In {of}, {_counted(len(candidates), 'candidate')} with match, queue and memory; SLOs met "
                          "and missed are counted.")  # fmt: skip


def weak_index(facts: Facts) -> Verdict:
    wrong = facts.open_of("kv_events_degraded", "kv_events_silent", "kv_events_down")
    if wrong:
        return Verdict(RED, f"{wrong[0].subject}: {wrong[0].message}")
    predicted, delivered = facts.requests.get("predicted_hit_tokens", 0), facts.requests.get("hit_tokens", 0)
    if not facts.requests.get("hit_known"):
        return Verdict(UNKNOWN, "No answer of the last 15 min told its cached tokens: the index was not tested.")
    told = f"predicted {predicted:,} hit tokens, delivered {delivered:,} in the last 15 min"
    heard = [worker for worker in facts.workers if worker.kv_state]
    silent = [worker.worker_id for worker in heard if worker.kv_state != "live"]
    if silent:
        return Verdict(UNKNOWN, f"KV events of {_named(silent)} are not live; {told}.")
    how = f"events of {_counted(len(heard), 'worker')} live" if heard else "no events: learnt from routing"
    return Verdict(GREEN, f"{how[0].upper()}{how[1:]}; {told}. A stale entry costs a miss, never an answer.")


def hits_recorded(facts: Facts) -> Verdict:
    known, told = facts.requests.get("hit_known", 0), facts.requests.get("usage_known", 0)
    if not told:
        return Verdict(UNKNOWN, "No answer with usage in the last 15 min.")
    share = known / told
    words = f"{_percent(share)} of {told:,} answers named their cached tokens in the last 15 min"
    if share < KNOWN_SHARE_MIN:
        off = [finding.subject for finding in facts.open_of("usage_details_off")]
        return Verdict(RED, f"{words}{f'; not told by {_named(off)}' if off else ''}.")
    return Verdict(GREEN, f"{words}.")


def ttft_compared(facts: Facts) -> Verdict:
    hit, miss = _buckets(facts.requests.get("ttft_hit", {})), _buckets(facts.requests.get("ttft_miss", {}))
    hits, misses = sum(hit.values()), sum(miss.values())
    p50_hit, p50_miss = quantile(hit, 0.5), quantile(miss, 0.5)
    if min(hits, misses) < SAMPLES_MIN or p50_hit is None or p50_miss is None:
        return Verdict(UNKNOWN, f"{hits:,} hits and {misses:,} misses in the last 15 min; 20 of each are needed.")
    words = f"{hits:,} hits had a median TTFT of {p50_hit:,.0f} ms, {misses:,} misses of {p50_miss:,.0f} ms"
    return Verdict(RED if p50_hit >= p50_miss else GREEN, f"{words}, in the last 15 min.")


def hot_spots(facts: Facts) -> Verdict:
    if not facts.hot:
        return Verdict(UNKNOWN, "Routers told of no prefix in the last 15 min.")
    waiting = {worker.worker_id: worker.waiting for worker in facts.workers}
    for prefix in facts.hot:
        busiest = max(prefix.by_worker, key=lambda name: prefix.by_worker[name], default="")
        idle = [name for name, count in waiting.items() if count == 0 and name.startswith(f"{prefix.pool}/")]
        if prefix.top_share >= ONE_HOME_SHARE and (waiting.get(busiest) or 0) > 0 and idle:
            return Verdict(RED, f"{busiest} alone serves {prefix.prefix} of {prefix.namespace} ({prefix.requests:,} "
                                f"requests) and queues, while {idle[0]} is idle.")  # fmt: skip
    top = facts.hot[0]
    return Verdict(GREEN, f"{_counted(len(facts.hot), 'prefix', 'prefixes')} watched; the hottest was asked for "
                          f"{top.requests:,} times, its busiest worker took {_percent(top.top_share)}.")  # fmt: skip


def transfer_worth(facts: Facts) -> Verdict:
    if not facts.pools:
        return Verdict(UNKNOWN, "No worker takes requests.")
    connected = [pool for pool in facts.pools if pool.has_connector]
    if not connected:
        return Verdict(GREEN, f"{_names(facts.pools)}: no KV connector, so nothing is pulled and misses are computed.")
    unweighed = [pool.slug for pool in connected if pool.transfer_gib_per_s is None]
    if unweighed:
        return Verdict(RED, f"No transfer speed is named for {_named(unweighed)}: a pull cannot be weighed.")
    weighed = sum(any(each.get("transfer_ms") for each in item.get("candidates", ())) for item in facts.decisions)
    if not weighed:
        return Verdict(UNKNOWN, f"No recorded decision of the last hour weighed a transfer ({_names(connected)}).")
    return Verdict(GREEN, f"{_counted(weighed, 'decision')} of the last hour weighed a transfer against computing.")


def separated(facts: Facts) -> Verdict:
    wrong = facts.open_of("isolation_violation", "canary_leaks", "ttft_leaks", "guard_open")
    if wrong:
        return Verdict(RED, f"{wrong[0].subject}: {wrong[0].message}")
    serving = {worker.worker_id for worker in facts.workers}
    if not serving:
        return Verdict(UNKNOWN, "No worker takes requests.")
    results = [row for row in facts.canaries if row.worker.worker_id in serving and row.verdict != "not_offered"]
    fresh = [row for row in results if facts.now - row.checked_at <= CANARY_OLD_AFTER]
    green = {row.worker.worker_id for row in fresh if row.verdict == "green"}
    doubtful = [row for row in results if row.verdict != "green" and row.endpoint not in TELLS_NO_USAGE]
    old = len(results) - len(fresh)
    if serving - green or doubtful or old:
        return Verdict(UNKNOWN, f"{len(serving - green)} of {_counted(len(serving), 'worker')} have no green canary of "
                                f"the last 2 h; {len(doubtful)} inconclusive, {old} old.")  # fmt: skip
    checked = facts.requests.get("isolation_checked", 0)
    return Verdict(GREEN, f"{_counted(len(fresh), 'canary', 'canaries')} of {_counted(len(serving), 'worker')} without "
                          f"a leak, {checked:,} answers of the last 15 min within their bound.")  # fmt: skip


def regression_tested(facts: Facts) -> Verdict:
    wrong = facts.open_of("template_regression", "tokenizer_changed", "tool_schema_changed")
    faulty = [item.name for item in facts.templates if item.faults]
    if wrong or faulty:
        words = f"{wrong[0].subject}: {wrong[0].message}" if wrong else f"Other tokens than accepted: {_named(faulty)}."
        return Verdict(RED, words)
    if not facts.templates:
        return Verdict(UNKNOWN, "No prompt template is published: there is nothing to hold tokens against.")
    unchecked = [item.name for item in facts.templates if not item.goldens]
    if unchecked:
        return Verdict(UNKNOWN, f"Without a tokenizer at hand nothing is compared: {_named(unchecked)}.")
    goldens = sum(item.goldens for item in facts.templates)
    return Verdict(GREEN, f"{_counted(goldens, 'accepted reading')} of {_counted(len(facts.templates), 'version')}, "
                          "computed again every 5 min: as accepted.")  # fmt: skip


def fallback(facts: Facts) -> Verdict:
    requests = facts.requests.get("requests", 0)
    misses = sum(facts.requests.get("ttft_miss", {}).values())
    if requests < SAMPLES_MIN:
        return Verdict(UNKNOWN, f"{_counted(requests, 'request')} in the last 15 min; 20 are needed.")
    failed = sum(count for kind, count in facts.requests.get("errors", {}).items() if kind in OUR_ERRORS)
    if failed / requests > FAILED_SHARE_MAX:
        return Verdict(RED, f"{failed:,} of {requests:,} requests failed in the last 15 min.")
    if not misses:
        return Verdict(UNKNOWN, "No request without a cached prefix was seen in the last 15 min.")
    return Verdict(GREEN, f"{misses:,} requests without a cached prefix were computed in full in the last 15 min; "
                          f"{failed:,} of {requests:,} failed.")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    key: str
    title: str
    judge: Callable[[Facts], Verdict]
    path: str
    action: str


CHECKS = (
    Check("prompt_order", "Prompts have a fixed order", prompt_order, "/templates/", "See templates"),
    Check("dynamic_last", "What changes stands last", dynamic_last, "/templates/", "See templates"),
    Check("token_blocks", "Matching is by token block", token_blocks, "/workers/", "See workers"),
    Check("weighing", "The router weighs match, queue, memory and SLO", weighing, "/requests/", "See decisions"),
    Check("weak_index", "The index may be late, never wrong", weak_index, "/workers/", "See sources"),
    Check("hits_recorded", "Hit tokens are recorded", hits_recorded, "/", "See figures"),
    Check("ttft_compared", "TTFT of hits and misses is compared", ttft_compared, "/", "See TTFT"),
    Check("hot_spots", "Hot spots are seen and spread", hot_spots, "/hotspots/", "See hot spots"),
    Check("transfer_worth", "A transfer must be worth it", transfer_worth, "/requests/", "See decisions"),
    Check("separated", "Namespaces are separated by salts", separated, "/isolation/", "See isolation"),
    Check("regression_tested", "Tokens are regression-tested", regression_tested, "/templates/", "See templates"),
    Check("fallback", "Without a hit there is plain prefill", fallback, "/requests/", "See requests"),
)


def judged(facts: Facts) -> list[Line]:
    lines = []
    for check in CHECKS:
        verdict = check.judge(facts)
        lines.append(Line(check.key, check.title, verdict.state, verdict.evidence, check.path, check.action))
    return lines


def _buckets(stored: dict[str, Any]) -> dict[int, int]:
    return {int(index): count for index, count in stored.items()}


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - NAMED_MAX
    return ", ".join(listed[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _names(pools: Iterable[PoolFact]) -> str:
    return _named(pool.slug for pool in pools)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
