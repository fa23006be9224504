"""The eight tiles and the verdict above them: is the fleet healthy, and does caching pay?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.telemetry.figures import Figure, Tiles, Values
from dashboard import numbers
from dashboard.charts.base import closed, per_second
from dashboard.data import PageData

SPARK_WIDTH, SPARK_HEIGHT = 120.0, 26.0
SAME_BELOW = 0.005
"""A relative change smaller than this is written as none."""


@dataclass(frozen=True, slots=True)
class Part:
    """One value of a tile. `tone` is hit, miss or nothing."""

    value: str
    unit: str = ""
    label: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Against what the page compares with. `judgement` is better, worse or same."""

    text: str
    judgement: str
    previous: str


@dataclass(frozen=True, slots=True)
class Tile:
    key: str
    label: str
    parts: list[Part]
    help: str
    formula: str
    href: str
    note: str = ""
    """Under the value; also why it is unknown."""
    tone: str = ""
    """crit or warn where the value deserves a judgement."""
    change: Change | None = None
    spark: list[str] = field(default_factory=list)
    """SVG polylines, one a run without gap."""


def tiles_of(data: PageData) -> list[Tile]:
    figures, query = data.tiles, data.state.query()
    return [
        _hit_share(data, figures, query),
        _saved(data, figures, query),
        _ttft(data, figures, query),
        _goodput(figures, query, data),
        _waiting(figures, query),
        _kv_use(data, figures, query),
        _violations(figures, query, data),
        _workers(figures, query),
    ]


def _hit_share(data: PageData, figures: Tiles, query: str) -> Tile:
    shares = [
        None if not prompt or hit is None else hit / prompt
        for hit, prompt in zip(data.hits.delivered_hit_tokens, data.hits.prompt_tokens, strict=True)
    ]
    return Tile(
        key="hit-share",
        label="Hit-token share",
        parts=[_percent_part(figures.hit_share.value)],
        help="Share of prompt tokens that workers served from their prefix cache instead of computing them.",
        formula="delivered hit tokens ÷ prompt tokens, over requests whose worker named its cached tokens",
        href=f"/?{query}#panel-hits",
        note=_known(figures.predicted_share.value, lambda share: f"predicted {numbers.percent(share)}"),
        change=_change(figures.hit_share, data, more_is_better=True, points=True),
        spark=spark(closed(data.hits, shares), top=1.0),
    )


def _saved(data: PageData, figures: Tiles, query: str) -> Tile:
    return Tile(
        key="saved",
        label="Prefill saved",
        parts=[_number_part(figures.prefill_tokens_saved_per_s.value, numbers.tokens, "tok/s")],
        help="Prompt tokens not computed again, and the GPU time that computing them would have taken.",
        formula="delivered hit tokens ÷ s; GPU-seconds = hit tokens ÷ the worker's prefill rate",
        href=f"/?{query}#panel-sources",
        note=_known(figures.gpu_seconds_saved_per_h.value, lambda value: f"{numbers.count(value)} GPU-s/h"),
        change=_change(figures.prefill_tokens_saved_per_s, data, more_is_better=True),
        spark=spark(per_second(data.hits, data.hits.delivered_hit_tokens)),
    )


def _ttft(data: PageData, figures: Tiles, query: str) -> Tile:
    hit, miss = figures.ttft_hit_p95_ms.value, figures.ttft_miss_p95_ms.value
    missing = [name for name, value in (("hit", hit), ("miss", miss)) if value is None]
    return Tile(
        key="ttft",
        label="TTFT hit | miss",
        parts=[_duration_part(hit, label="hit", tone="hit"), _duration_part(miss, label="miss", tone="miss")],
        help="Time to the first token, 95th percentile: at least half of the prompt cached against nothing cached.",
        formula="quantile of merged log-bucket histograms, error ≤ 2.5 %",
        href=f"/?{query}#panel-ttft",
        note=f"p95; no {' and no '.join(missing)} in range" if missing else "p95",
        change=_change(figures.ttft_hit_p95_ms, data, more_is_better=False),
        spark=spark(closed(data.ttft, data.ttft.hit_p95_ms)),
    )


def _goodput(figures: Tiles, query: str, data: PageData) -> Tile:
    share = figures.goodput_share.value
    return Tile(
        key="goodput",
        label="Goodput in SLO",
        parts=[_percent_part(share)],
        help="Requests answered within their namespace's TTFT objective.",
        formula="requests within objective ÷ requests that have one; failed ones count against it",
        href=f"/?{query}#panel-ttft",
        note="no namespace with an objective had traffic" if share is None else "",
        tone="crit" if share is not None and share < 0.9 else "warn" if share is not None and share < 0.95 else "",
        change=_change(figures.goodput_share, data, more_is_better=True, points=True),
    )


def _waiting(figures: Tiles, query: str) -> Tile:
    rate = figures.requests_per_s.value
    errors = figures.errors_per_s.value
    return Tile(
        key="waiting",
        label="Waiting",
        parts=[_number_part(figures.waiting.value, numbers.count, "requests")],
        help="Requests queued inside the workers at their last good poll.",
        formula="sum of vllm:num_requests_waiting",
        href=f"/workers/?{query}",
        note=_no_poll(figures)
        if figures.waiting.value is None
        else " · ".join(
            text
            for text in (
                _known(rate, lambda value: f"{numbers.significant(value)} req/s"),
                _known(errors, lambda value: f"{numbers.significant(value)} err/s" if value else ""),
            )
            if text
        ),
    )


def _no_poll(figures: Tiles) -> str:
    """Why figures of the last poll are unknown."""
    return "no worker answers its polls" if figures.workers.down else "no worker was polled"


def _kv_use(data: PageData, figures: Tiles, query: str) -> Tile:
    use = figures.kv_use_max.value
    return Tile(
        key="kv",
        label="KV use, max",
        parts=[_percent_part(use)],
        help="KV blocks held by running requests on the fullest worker. Cached blocks without a request are not in it.",
        formula="max over workers of vllm:kv_cache_usage_perc",
        href=f"/?{data.state.query(m='kv_use')}#panel-heat",
        note=_no_poll(figures) if use is None else "",
        tone="crit" if use is not None and use >= 0.95 else "warn" if use is not None and use >= 0.85 else "",
        spark=spark(closed(data.kv_use, data.kv_use.kv_use_max), top=1.0),
    )


def _violations(figures: Tiles, query: str, data: PageData) -> Tile:
    value = figures.violations.value
    return Tile(
        key="violations",
        label="Violations",
        parts=[_number_part(value, numbers.count, "")],
        help="Answers with more cached tokens than the namespace's own history on that worker allows.",
        formula="count of cached tokens > longest prefix in the namespace's own history",
        href=f"/isolation/?{query}",
        note="nothing was checked in range" if value is None else _coverage_note(data),
        tone="crit" if value else "",
    )


def _coverage_note(data: PageData) -> str:
    checked, unknown = data.coverage.checked, data.coverage.unknown
    if checked is None:
        return "coverage unknown"
    total = checked + (unknown or 0)
    return f"{numbers.percent(checked / total)} checked" if total else "nothing was checked"


def _workers(figures: Tiles, query: str) -> Tile:
    counts = figures.workers
    known = counts.ready + counts.drain + counts.maintenance + counts.down + counts.unknown
    others = [
        f"{number} {word}"
        for number, word in (
            (counts.drain, "draining"),
            (counts.maintenance, "in maintenance"),
            (counts.down, "down or silent"),
            (counts.unknown, "never polled"),
        )
        if number
    ]
    return Tile(
        key="workers",
        label="Workers ready",
        parts=[Part(f"{counts.ready}" if known else numbers.UNKNOWN, f"of {known}" if known else "")],
        help="Workers that may take requests and answered their last polls.",
        formula="wanted state ready and last poll good",
        href=f"/workers/?{query}",
        note=", ".join(others) if known else "no worker yet: add one by URL",
        tone="crit" if counts.down else "warn" if counts.unknown or (known and not counts.ready) else "",
    )


def _change(figure: Figure, data: PageData, *, more_is_better: bool, points: bool = False) -> Change | None:
    """The change against what the page compares with; None when either is unknown or the page hides it."""
    if not data.state.compares or figure.value is None or figure.previous is None:
        return None
    difference = figure.value - figure.previous
    relative = difference / abs(figure.previous) if figure.previous else (1.0 if difference else 0.0)
    same = abs(difference if points else relative) < SAME_BELOW
    sign = "+" if difference > 0 else "−"
    size = f"{abs(difference) * 100:.1f} pt" if points else f"{min(abs(relative), 9.99) * 100:.0f} %"
    return Change(
        text="±0" if same else f"{sign}{size}",
        judgement="same" if same else "better" if (difference > 0) == more_is_better else "worse",
        previous=f"{_written(figure.previous, figure.unit)}, {data.state.compared_words}",
    )


def _written(value: float, unit: str) -> str:
    if unit == "share":
        return numbers.percent(value)
    return numbers.milliseconds(value) if unit == "ms" else f"{numbers.tokens(value)} {unit}"


def spark(values: Values, *, top: float | None = None) -> list[str]:
    """`values` as SVG polyline points in a box of SPARK_WIDTH × SPARK_HEIGHT, one text for each run without gap."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return []
    first = next(index for index, value in enumerate(values) if value is not None)
    values = values[first:] if first > len(values) / 2 else values
    high = top or max(known) or 1.0
    step = SPARK_WIDTH / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = SPARK_HEIGHT - 1 - min(max(value / high, 0.0), 1.0) * (SPARK_HEIGHT - 2)
        runs[-1].append(f"{index * step:.1f},{y:.1f}")
    return [" ".join(run) for run in runs if len(run) > 1]


def _percent_part(share: float | None) -> Part:
    return Part(numbers.UNKNOWN) if share is None else Part(f"{share * 100:.1f}", "%")


def _number_part(value: float | None, write: Callable[[float | None], str], unit: str) -> Part:
    return Part(numbers.UNKNOWN) if value is None else Part(write(value), unit)


def _duration_part(value_ms: float | None, *, label: str, tone: str) -> Part:
    text, _, unit = numbers.milliseconds(value_ms).partition(" ")
    return Part(text, unit, label=label, tone=tone)


def _known(value: float | None, words: Callable[[float], str]) -> str:
    return "" if value is None else words(value)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`level` is ok, warn, crit or unknown."""

    level: str
    title: str
    sentence: str


def verdict_of(data: PageData) -> Verdict:
    """The first thing an operator reads."""
    level, title = _health(data)
    return Verdict(level=level, title=title, sentence=_payoff(data.tiles))


def _health(data: PageData) -> tuple[str, str]:
    counts = data.tiles.workers
    open_violations = any(item.kind == "isolation_violation" for item in data.attention) or data.tiles.violations.value
    if not any((counts.ready, counts.drain, counts.maintenance, counts.down, counts.unknown)):
        return "unknown", "No workers yet"
    if open_violations:
        return "crit", "A tenant's boundary was crossed"
    if data.workers and not any(row.health in ("ok", "down") for row in data.workers):
        return "unknown", "No worker was polled lately: these figures are old"
    if counts.down:
        return "crit", f"{counts.down} {'worker is' if counts.down == 1 else 'workers are'} down or silent"
    if not counts.ready:
        return "crit", "No worker takes requests"
    critical = sum(item.severity == "critical" for item in data.attention)
    if critical:
        return "crit", f"{critical} critical {'finding' if critical == 1 else 'findings'}"
    if data.tiles.data_age_s is None:
        return "unknown", "No router has reported yet"
    warnings = sum(item.severity == "warning" for item in data.attention)
    if warnings:
        return "warn", f"Serving, with {warnings} {'warning' if warnings == 1 else 'warnings'}"
    return "ok", "Fleet is healthy"


def _payoff(figures: Tiles) -> str:
    share = figures.hit_share.value
    if share is None:
        return "Whether caching pays is unknown: no request with known cached tokens in this range."
    words = [f"Caching served {numbers.percent(share)} of prompt tokens"]
    if figures.gpu_seconds_saved_per_h.value is not None:
        words.append(f"saved {numbers.count(figures.gpu_seconds_saved_per_h.value)} GPU-seconds an hour")
    hit, miss = figures.ttft_hit_p50_ms.value, figures.ttft_miss_p50_ms.value
    sentence = " and ".join(words)
    if hit is None or miss is None:
        return f"{sentence}."
    delta = miss - hit
    faster = f"a hit answers {numbers.milliseconds(abs(delta))} {'sooner' if delta >= 0 else 'LATER'} than a miss (p50)"
    return f"{sentence}; {faster}."
