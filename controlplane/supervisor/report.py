"""The report of a headless run: what the stored rollups say about it, beside what the traffic player saw.

Every figure comes from rows that routers, pollers and the KV-event subscriber shipped during the run; a figure that
nothing reported is null. `problems` is empty when the whole loop worked.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.db.models import QuerySet

from controlplane.snapshots.models import PublishedSnapshot
from controlplane.snapshots.selectors import rollout
from controlplane.telemetry.models import RequestRollup, SourceProgress, Width, WorkerRollup
from router.contract.histogram import Buckets, merge, quantile

SETTLE_WITHIN_S = 10.0
SETTLE_PAUSE_S = 0.25

Report = dict[str, Any]
"""JSON: names as in the issue of figures, see `build_report`."""


async def settled() -> None:
    """Returns when telemetry up to this moment is stored, or after SETTLE_WITHIN_S."""
    now = datetime.now(UTC)
    deadline_s = time.monotonic() + SETTLE_WITHIN_S
    while not await asyncio.to_thread(_stored_until, now):
        if time.monotonic() > deadline_s:
            return
        await asyncio.sleep(SETTLE_PAUSE_S)


def _stored_until(moment: datetime) -> bool:
    routers = SourceProgress.objects.exclude(router_state=None)
    return routers.filter(last_at__gte=moment).exists()


def build_report(
    *,
    since: datetime,
    duration_s: float,
    seconds_to_serving: float,
    restarts: dict[str, int],
    ingest_lags_ms: Sequence[float],
    websocket_updates: int | None,
    websocket_problem: str,
    client_report: Path,
    traffic_expected: bool,
) -> Report:
    first_bucket = since - timedelta(seconds=since.timestamp() % Width.TEN_SECONDS)
    report = {
        **_requests(RequestRollup.objects.filter(width_s=Width.TEN_SECONDS, start__gte=first_bucket)),
        **_workers(WorkerRollup.objects.filter(width_s=Width.TEN_SECONDS, start__gte=first_bucket)),
        **_snapshots(),
        "ingest_lag_ms": {"p95": _rounded(percentile(ingest_lags_ms, 0.95), 1)},
        "websocket_updates": websocket_updates,
        "websocket_problem": websocket_problem,
        "seconds_to_serving": round(seconds_to_serving, 2),
        "duration_s": duration_s,
        "restarts": restarts,
        "client": _client(client_report),
    }
    report["problems"] = problems(report, traffic_expected=traffic_expected)
    return report


def _requests(rows: QuerySet[RequestRollup]) -> Report:
    sums: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    spills: Counter[str] = Counter()
    ttft_hit: Buckets = {}
    ttft_miss: Buckets = {}
    decision_us: Buckets = {}
    for row in rows.iterator():
        for name in REQUEST_SUMS:
            sums[name] += getattr(row, name)
        errors.update(row.errors)
        spills.update(row.spills)
        merge(ttft_hit, _buckets(row.ttft_hit))
        merge(ttft_miss, _buckets(row.ttft_miss))
        merge(decision_us, _buckets(row.decision_us))
    known = sums["hit_prompt_tokens"]
    return {
        "requests": sums["requests"],
        "errors": sum(errors.values()),
        "errors_by_kind": dict(errors),
        "prompt_tokens": sums["prompt_tokens"],
        "hit_tokens": sums["hit_tokens"],
        "predicted_hit_tokens": sums["predicted_hit_tokens"],
        "hit_token_share": _rounded(sums["hit_tokens"] / known, 4) if known else None,
        "ttft_hit_ms": _quantiles(ttft_hit, p50=0.5, p95=0.95),
        "ttft_miss_ms": _quantiles(ttft_miss, p50=0.5, p95=0.95),
        "router_decision_us": _quantiles(decision_us, p50=0.5, p99=0.99),
        "spills": dict(spills),
        "retries": sums["retries"],
        "violations": sums["isolation_violations"],
        "isolation_checked": sums["isolation_checked"],
        "isolation_unknown": sums["isolation_unknown"],
    }


REQUEST_SUMS = (
    "requests", "retries", "prompt_tokens", "hit_tokens", "hit_prompt_tokens", "predicted_hit_tokens",
    "isolation_checked", "isolation_unknown", "isolation_violations",
)  # fmt: skip


def _workers(rows: QuerySet[WorkerRollup]) -> Report:
    """Evictions are null when no KV events arrived: then nobody counted."""
    found = list(rows.only("polls_ok", "polls_failed", "kv_samples", "removed_blocks"))
    counted = any(row.kv_samples for row in found)
    return {
        "polls_ok": sum(row.polls_ok for row in found),
        "polls_failed": sum(row.polls_failed for row in found),
        "evictions": sum(row.removed_blocks for row in found) if counted else None,
    }


def _snapshots() -> Report:
    newest = PublishedSnapshot.objects.first()
    state = rollout()
    return {
        "snapshot_version": newest.version if newest else None,
        "routers": state.routers_total,
        "routers_on_version": state.routers_on_version,
    }


def problems(report: Report, *, traffic_expected: bool) -> list[str]:
    """One sentence for each part of the loop that did not work."""
    checks: Iterable[tuple[bool, str]] = [
        (traffic_expected and not report["requests"], "no request reached the stored figures"),
        (traffic_expected and not report["hit_tokens"], "no worker reported a cached token"),
        (traffic_expected and report["evictions"] is None, "no KV event was counted"),
        (traffic_expected and not report["polls_ok"], "no poll of a worker succeeded"),
        (report["snapshot_version"] is None, "no snapshot was published"),
        (not report["routers_on_version"], "no router serves the current snapshot"),
        (not report["websocket_updates"], f"no live update of the dashboard {report['websocket_problem']}".rstrip()),
        (traffic_expected and report["client"] is None, "the traffic player left no report"),
        (traffic_expected and _error_share(report) > ERROR_SHARE_MAX, f"{report['errors']} requests failed"),
        *((True, f"{role} had to be started again {count} times") for role, count in report["restarts"].items()),
    ]
    return [sentence for wrong, sentence in checks if wrong]


ERROR_SHARE_MAX = 0.01


def _error_share(report: Report) -> float:
    """Without the clients that went away: the player itself ends in the middle of its last answers."""
    failed = report["errors"] - report["errors_by_kind"].get("client_disconnect", 0)
    return failed / report["requests"] if report["requests"] else 0.0


def _client(path: Path) -> Any:  # the player's own JSON
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _buckets(stored: dict[str, int]) -> Buckets:
    """JSON has text keys only."""
    return {int(index): count for index, count in stored.items()}


def _quantiles(buckets: Buckets, **wanted: float) -> dict[str, float | None]:
    return {name: _rounded(quantile(buckets, q), 2) for name, q in wanted.items()}


def percentile(values: Sequence[float], q: float) -> float | None:
    """Nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def save_report(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
