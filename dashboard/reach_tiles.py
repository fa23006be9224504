"""The tiles of the hit-tokens page."""

from __future__ import annotations

from django.conf import settings

from controlplane.telemetry.available_figures import Reach, ReachSeries
from dashboard import numbers
from dashboard.charts.base import closed, per_second
from dashboard.tiles import Part, Tile, spark

NOTHING = Reach(0, 0, 0, 0, 0, 0, 0, 0.0)


def tiles_of(series: ReachSeries, query: str) -> list[Tile]:
    total = series.total or NOTHING
    return [
        _share(
            "available", "Available", total.share(total.repeated_tokens), f"/hits/?{query}#panel-reach-series",
            "Prompt tokens that came before in their namespace, on any worker: what one cache that all workers share "
            "and that never evicts would hit.",
            "repeated tokens ÷ prompt tokens", note="ceiling",
        ),
        _share(
            "captured", "Captured by routing", _ratio(total.expected_hit_tokens, total.repeated_tokens),
            f"/hits/?{query}#panel-reach-funnel",
            "Of the available tokens, those that the chosen workers were thought to hold.",
            "expected hit tokens ÷ repeated tokens", note="of available",
        ),
        _share(
            "delivered", "Delivered", total.share(total.hit_tokens), f"/hits/?{query}#panel-reach-funnel",
            "Prompt tokens that workers named as cached in their answers.",
            "hit tokens ÷ prompt tokens",
            note=f"{numbers.percent(_ratio(total.hit_tokens, total.repeated_tokens))} of available",
        ),
        _sizes(series, query),
        _saved(series, total, query),
        _cost(series, total, query),
    ]  # fmt: skip


def _share(key: str, label: str, share: float | None, href: str, help_: str, formula: str, *, note: str) -> Tile:
    part = Part(numbers.UNKNOWN) if share is None else Part(f"{share * 100:.1f}", "%")
    return Tile(key, label, [part], help_, formula, href, note=note if share is not None else "no prompt in range")


def _sizes(series: ReachSeries, query: str) -> Tile:
    p50, p95 = series.total_size_p50, series.total_size_p95
    return Tile(
        key="hit-size",
        label="Hit tokens a request",
        parts=[Part(numbers.tokens(p50), label="median", tone="hit"), Part(numbers.tokens(p95), label="p95")],
        help="Hit tokens of one request, median and 95th percentile: a rate alone hides that few requests hit much.",
        formula="quantile of merged log-bucket histograms, error ≤ 2.5 %",
        href=f"/hits/?{query}#panel-hit-sizes",
        note="p50, p95" if p50 is not None else "no known cached tokens in range",
        spark=spark(closed(series, series.hit_size_p50)),
    )


def _saved(series: ReachSeries, total: Reach, query: str) -> Tile:
    per_h = 3600 / series.seconds if series.seconds else None
    gpu_s = None if per_h is None else total.saved_prefill_ms / 1000 * per_h
    return Tile(
        key="saved-prefill",
        label="Prefill saved",
        parts=[Part(numbers.tokens(None if per_h is None else total.hit_tokens * per_h), "tok/h")],
        help="Prompt tokens not computed again in an hour, and the GPU time that computing them would have taken.",
        formula="delivered hit tokens ÷ h; GPU-seconds = hit tokens ÷ the worker's learnt prefill rate",
        href=f"/hits/?{query}#panel-reach-series",
        note=f"{numbers.count(gpu_s)} GPU-s/h" if gpu_s is not None else "no router reported",
        spark=spark(per_second(series, series.hit_tokens)),
    )


def _cost(series: ReachSeries, total: Reach, query: str) -> Tile:
    rate = settings.CONFIG.gpu_hour_cost
    per_h = None
    if rate is not None and series.seconds:
        per_h = total.saved_prefill_ms / 1000 / series.seconds * rate
    return Tile(
        key="saved-cost",
        label="Cost saved",
        parts=[Part(numbers.significant(per_h), f"{settings.CONFIG.cost_currency}/h" if per_h is not None else "")],
        help="What the saved GPU time would have cost in an hour, at the price of a worker's GPU-hour that "
        "TIDEMARK_GPU_HOUR_COST names.",
        formula="saved GPU-seconds ÷ 3600 ÷ h × price",
        href=f"/hits/?{query}#panel-reach-funnel",
        note=_cost_note(rate),
    )


def _cost_note(rate: float | None) -> str:
    if rate is None:
        return "unknown: no price is set"
    return f"at {numbers.significant(rate)} {settings.CONFIG.cost_currency} a GPU-hour"


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
