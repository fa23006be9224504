"""The panels: what each shows, how old it is, and what to do when it has nothing to show."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.telemetry.figures import HEAT_MEASURES, Values
from dashboard import charts, freshness, links, numbers, policies, tiles
from dashboard.data import ATTENTION_SHOWN, PageData
from dashboard.freshness import Freshness

Context = dict[str, Any]
"""Template context: values of any type."""


@dataclass(frozen=True, slots=True)
class Panel:
    """`template` renders alone, in an element with id `panel-<name>`."""

    name: str
    title: str
    help: str
    context: Callable[[PageData], Context]
    fresh: Callable[[PageData], Freshness] | None = None
    template: str = ""

    @property
    def template_name(self) -> str:
        return f"dashboard/_fragments/{self.template or self.name}.html"


def _verdict(data: PageData) -> Context:
    return {"verdict": tiles.verdict_of(data)}


def _tiles(data: PageData) -> Context:
    return {"tiles": tiles.tiles_of(data)}


def _sources(data: PageData) -> Context:
    known = list(data.sources.by_source.values())
    return _chart(
        charts.sources_figure(data.sources, data.hits, data.state.zone),
        known,
        "No prompt tokens in this range.",
        "Send a request through the router, or choose a longer range.",
    )


def _hits(data: PageData) -> Context:
    return _chart(
        charts.hit_tokens_figure(data.hits, data.state.zone),
        [data.hits.prompt_tokens],
        "No router reported requests in this range.",
        "Send a request through the router; check that it is listed under Policies.",
    ) | {"unknown_share": _mean(data.hits.unknown_prompt_share)}


def _ttft(data: PageData) -> Context:
    series = data.ttft
    known = [series.hit_p50_ms, series.miss_p50_ms]
    both = [value for value in series.delta_p50_ms if value is not None]
    return _chart(
        charts.ttft_figure(series, data.state.zone),
        known,
        "No first tokens were measured in this range.",
        "TTFT of hits and misses needs workers started with --enable-prompt-tokens-details.",
    ) | {
        "hit_ms": data.tiles.ttft_hit_p50_ms.value,
        "miss_ms": data.tiles.ttft_miss_p50_ms.value,
        "delta_known": bool(both),
    }


def _heat(data: PageData) -> Context:
    return _chart(
        charts.heat_figure(data.heat, data.state.zone),
        data.heat.values,
        "No worker has reported this measure in this range.",
        "Add a worker, or choose another measure.",
    ) | {
        "top": numbers.percent(charts.heat_top(data.heat))
        if data.heat.unit == "share"
        else f"{numbers.count(charts.heat_top(data.heat))} {data.heat.unit}",
        "measures": [
            {"key": key, "label": _MEASURE_WORDS.get(key, key), "on": key == data.state.m, "q": data.state.query(m=key)}
            for key in HEAT_MEASURES
        ],
    }


_MEASURE_WORDS = {
    "kv_use": "KV use",
    "running": "Running",
    "hit_share": "Hit share",
    "evictions": "Evictions",
    "requests": "Requests",
}


def _churn(data: PageData) -> Context:
    return _chart(
        charts.churn_figure(data.churn, data.state.zone),
        [data.churn.stored_per_min, data.churn.removed_per_min],
        "No KV events in this range: churn is unknown.",
        "Start workers with --kv-events-config and name their endpoint on the worker's page.",
    ) | {"gaps": sum(int(value) for value in data.churn.gaps if value)}


def _attention(data: PageData) -> Context:
    return {"items": [links.attention_row(item, data.state) for item in data.attention]}


def _isolation(data: PageData) -> Context:
    coverage = data.coverage
    total = None if coverage.checked is None else coverage.checked + (coverage.unknown or 0)
    return {
        "coverage": coverage,
        "checked_share": None if not total else (coverage.checked or 0) / total,
        "violations": data.violations,
    }


def _coverage(data: PageData) -> Context:
    """Without the list of violations: the isolation page has them as a table."""
    return _isolation(data) | {"brief": True}


def _hot(data: PageData) -> Context:
    return {"prefixes": data.hot_prefixes}


def _workers(data: PageData) -> Context:
    return {"workers": data.workers, "shares": _traffic_shares(data)}


def _traffic_shares(data: PageData) -> dict[str, float]:
    running = {row.worker_id: row.running for row in data.workers if row.running is not None}
    total = sum(running.values())
    return {worker: value / total for worker, value in running.items()} if total else {}


def _sources_of_data(data: PageData) -> Context:
    return {"sources": data.freshness}


def _watermarks(data: PageData) -> Context:
    return {"rows": policies.rows(), "query": data.state.query()}


def _rollout(data: PageData) -> Context:
    return {"rollout": policies.rollout(data.now)}


def _alerts(data: PageData) -> Context:
    return {
        "critical": sum(item.severity == "critical" for item in data.attention),
        "warning": sum(item.severity == "warning" for item in data.attention),
        "more": len(data.attention) >= ATTENTION_SHOWN,
    }


PANELS: dict[str, Panel] = {
    panel.name: panel
    for panel in (
        Panel("alerts", "Alerts", "", _alerts),
        Panel("verdict", "Verdict", "", _verdict),
        Panel("tiles", "Figures", "", _tiles, freshness.of_requests),
        Panel(
            "sources",
            "Prompt tokens by source",
            "Where the KV of prompt tokens came from, as workers count it, against the hits that the router predicted.",
            _sources,
            freshness.of_polls,
            "chart",
        ),
        Panel(
            "hits",
            "Hit tokens delivered and predicted",
            "Hit tokens that workers named in their answers, those the router expected, and all prompt tokens.",
            _hits,
            freshness.of_requests,
            "hits",
        ),
        Panel(
            "ttft",
            "TTFT, hit against miss",
            "Hit: at least half of the prompt cached. Miss: nothing cached. The band is the difference of the medians.",
            _ttft,
            freshness.of_requests,
        ),
        Panel(
            "heat",
            "Hot spots: worker × time",
            "One row a worker. A bright row beside dark ones is a hot spot; an empty cell means nothing was reported.",
            _heat,
            freshness.of_polls,
        ),
        Panel(
            "churn",
            "Eviction churn",
            "Blocks stored in and removed from prefix caches. Re-stored: evicted, then computed again within 5 min.",
            _churn,
            freshness.of_events,
        ),
        Panel(
            "attention",
            "Needs attention",
            "Open findings, violations and workers that went silent; most severe first.",
            _attention,
            freshness.of_polls,
        ),
        Panel(
            "isolation",
            "Isolation",
            "Answers checked for cached tokens that only another namespace could have cached.",
            _isolation,
            freshness.of_requests,
        ),
        Panel(
            "coverage",
            "Coverage",
            "How many answers could be checked; the rest is unknown, not clean.",
            _coverage,
            freshness.of_requests,
            "isolation",
        ),
        Panel(
            "hot",
            "Hot prefixes",
            "Most requested prefixes by keyed id, and how much of each its busiest worker takes.",
            _hot,
            freshness.of_requests,
        ),
        Panel("strip", "Workers", "State of every worker at its last poll.", _workers, freshness.of_polls),
        Panel("workers", "Workers", "State of every worker at its last poll.", _workers, freshness.of_polls),
        Panel("origins", "Freshness of sources", "When each source of figures last spoke.", _sources_of_data),
        Panel(
            "watermarks",
            "Watermark policies",
            "The narrowest scope wins: namespace, then pool, then global.",
            _watermarks,
        ),
        Panel("rollout", "Roll-out", "Which version of the policy each router serves.", _rollout),
    )
}
CHARTS = ("sources", "hits", "ttft", "heat", "churn")
"""Panels with a figure, a table and a CSV."""


def _chart(figure: charts.Figure, known: list[Values], missing: str, next_step: str) -> Context:
    """Context of a chart: the figure, or what is missing and the next step when no bucket holds anything."""
    empty = not any(value is not None for values in known for value in values)
    if not empty:
        figure = charts.begin_with_data(figure, known)
    return {
        "figure": "" if empty else json.dumps(figure, separators=(",", ":"), allow_nan=False),
        "missing": missing,
        "next_step": next_step,
    }


def _mean(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
