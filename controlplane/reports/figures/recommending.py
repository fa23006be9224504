"""What follows from the figures. Pure: each recommendation carries the figures that it rests on.

A threshold is a share of what the span holds, so that large and small fleets are judged alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Figures = dict[str, Any]
GOODPUT_MIN = 0.95
"""Requests within their TTFT objective: the same as a p95 within it."""
ABOVE_HIGH_SHARE = 0.05
"""Of the time, above the high watermark: more than an hour a day."""
HEADROOM_KV_USE = 0.3
"""Largest KV use of a pool that could do with fewer workers."""
EVICTION_LOSS_SHARE = 0.05
"""Of what caching saves, computed again after an eviction."""
HOT_SHARE = 0.05
"""Of all requests, on one prefix …"""
HOT_TOP_SHARE = 0.7
"""… of which one worker serves this much."""
HIT_KNOWN_MIN = 0.9
BREAKS_TOKENS_SHARE = 0.01
"""Of all prompt tokens, computed each time because something in front changes."""

_ORDER = {"act": 0, "plan": 1, "look": 2}


def recommendations(review: Figures) -> list[Figures]:
    """Most urgent first. `urgency`: act (it hurts), plan (it will), look (it may pay)."""
    found = [*_isolation(review), *_objective(review), *_capacity(review), *_forecasts(review), *_prompts(review)]
    found += [*_eviction(review), *_hot(review), *_coverage(review), *_headroom(review)]
    return sorted(found, key=lambda row: _ORDER[row["urgency"]])


def _row(urgency: str, title: str, detail: str, **evidence: Any) -> Figures:
    """Evidence: what, figure, unit (`share`, `s`, `ms`, `count`, `tokens`, `points`, `text`)."""
    shown = [{"what": what.replace("_", " "), "value": value, "unit": unit} for what, (value, unit) in evidence.items()]
    return {"urgency": urgency, "title": title, "detail": detail, "evidence": shown}


def _isolation(review: Figures) -> Iterator[Figures]:
    count = review["summary"]["violations"]
    if count:
        yield _row(
            "act", "Look into the isolation violations",
            "Answers had more cached tokens than their namespace's own history allows.",
            violations=(count, "count"),
        )  # fmt: skip


def _objective(review: Figures) -> Iterator[Figures]:
    goodput = review["summary"]["goodput"]
    if goodput is not None and goodput < GOODPUT_MIN:
        yield _row(
            "act", "Bring TTFT back within its objective",
            f"Fewer than {GOODPUT_MIN:.0%} of the requests with an objective had their first token in time.",
            goodput=(goodput, "share"), TTFT_p95_of_misses=(review["summary"]["ttft_miss_p95_ms"], "ms"),
            TTFT_p95_of_hits=(review["summary"]["ttft_hit_p95_ms"], "ms"),
        )  # fmt: skip


def _capacity(review: Figures) -> Iterator[Figures]:
    for pool in review["pools"]:
        above = pool["above_high_share"]
        if above is not None and above > ABOVE_HIGH_SHARE:
            yield _row(
                "act", f"Give {pool['pool']} more KV capacity",
                "Above the high watermark its workers take no new prefixes: what is new is computed elsewhere, cold. "
                "Add workers, or move a tenant to another pool.",
                time_above_high=(above, "share"), high_watermark=(pool["high"], "share"),
                mean_KV_use=(pool["kv_use_mean"], "share"), **_simulated(review, pool["pool"], "more worker"),
            )  # fmt: skip


def _forecasts(review: Figures) -> Iterator[Figures]:
    for row in review["forecasts"]:
        if not row["enough"] or row["limit"] is None or row["reached"] is None or row["trend"] == "level":
            continue
        what = "its high watermark" if row["measure"] == "kv_use" else "the limit of its TTFT objective"
        yield _row(
            "plan", f"{row['subject']} reaches {what} about {row['reached']}",
            "By the trend of its daily figures, if nothing changes.",
            now=(row["now"], "share"), limit=(row["limit"], "share"), a_day=(row["slope_per_day"], "points"),
            earliest=(row["earliest"] or "beyond the horizon", "text"),
            latest=(row["latest"] or "beyond the horizon", "text"),
            **_simulated(review, row["subject"], "more worker"),
        )  # fmt: skip


def _prompts(review: Figures) -> Iterator[Figures]:
    total = review["summary"]["prompt_tokens"] or 0
    for row in review["breakers"][:3]:
        if total and row["lost_tokens"] / total > BREAKS_TOKENS_SHARE:
            where = row["template"] or row["namespace"]
            yield _row(
                "act", f"Move the {row['words']} of {where} behind the shared text",
                "It changes with every prompt and cuts off the prefix: what stands behind it is computed each time.",
                prompts_cut_off=(row["prompts"], "count"), of_those_looked_at=(row["share"], "share"),
                tokens_computed_again=(row["lost_tokens"], "tokens"),
                **_simulated(review, row["pool"], "changing text"),
            )  # fmt: skip


def _eviction(review: Figures) -> Iterator[Figures]:
    saved = review["summary"]["saved_gpu_s"] or 0
    for pool in review["pools"]:
        lost = pool["lost_gpu_s"]
        if lost is not None and saved and lost / saved > EVICTION_LOSS_SHARE:
            yield _row(
                "plan", f"Keep evicted prefixes of {pool['pool']} within reach",
                "Blocks were evicted and stored again within five minutes. A CPU or shared KV tier, or more workers, "
                "would have kept them.",
                GPU_seconds_lost=(lost, "s"), share_of_what_caching_saves=(lost / saved, "share"),
                tokens_computed_again=(pool["lost_tokens"], "tokens"),
            )  # fmt: skip


def _hot(review: Figures) -> Iterator[Figures]:
    total = review["summary"]["requests"] or 0
    hot = [
        row
        for row in review["prefixes"]
        if row["top_worker"]
        and total
        and row["requests"] / total > HOT_SHARE
        and (row["top_share"] or 0) > HOT_TOP_SHARE
    ]
    if hot:
        first = hot[0]
        yield _row(
            "look", f"Spread the hot prefix {first['prefix']} of {first['namespace']}",
            "One worker serves most of it: a second home would halve its queue at the price of one more copy.",
            requests=(first["requests"], "count"), share_of_all=(first["requests"] / total, "share"),
            on_one_worker=(first["top_share"], "share"), worker=(first["top_worker"], "text"),
            tokens=(first["tokens"], "tokens"), prefixes_like_it=(len(hot) - 1, "count"),
        )  # fmt: skip


def _coverage(review: Figures) -> Iterator[Figures]:
    known = review["summary"]["hit_known_share"]
    if known is not None and known < HIT_KNOWN_MIN:
        yield _row(
            "look", "Let every worker name its cached tokens",
            "Hit figures speak for the rest only. Start workers with --enable-prompt-tokens-details.",
            answers_that_name_them=(known, "share"),
        )  # fmt: skip


def _headroom(review: Figures) -> Iterator[Figures]:
    for pool in review["pools"]:
        top, goodput = pool["kv_use_max"], review["summary"]["goodput"]
        if pool["workers"] > 1 and top is not None and top < HEADROOM_KV_USE and (goodput or 0) >= GOODPUT_MIN:
            yield _row(
                "look", f"{pool['pool']} has room to spare",
                "Its KV use never came near the watermarks and objectives were met: a worker less may do.",
                largest_KV_use=(top, "share"), goodput=(goodput, "share"),
                **_simulated(review, pool["pool"], "fewer worker"),
            )  # fmt: skip


def _simulated(review: Figures, pool: str, scenario: str) -> dict[str, tuple[Any, str]]:
    """What the simulator says of the change, beside the fleet as it is."""
    asked = review["what_if"]
    if not asked["available"] or asked["pool"] != pool:
        return {}
    found = next((row for row in asked["scenarios"] if scenario in row["name"]), None)
    if found is None or not found["ttft_p95_s"]:
        return {}
    return {
        "TTFT_p95_simulated_as_it_is": (asked["scenarios"][0]["ttft_p95_s"]["mean"] * 1000, "ms"),
        f"TTFT_p95_simulated_with_{found['name'].replace(' ', '_')}": (found["ttft_p95_s"]["mean"] * 1000, "ms"),
    }
