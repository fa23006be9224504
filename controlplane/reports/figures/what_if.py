"""What a change of a pool would do, by the fleet simulator with the production routing core.

The simulator runs in a process of its own, bounded in time. Where routers recorded the pool's busiest hour, that very
traffic is replayed (`python -m simulator what-if`); else it is told figures only (`python -m simulator.fleet.what_if`):
the hour's rate and lengths, its hit share, how requests are spread over prefixes. Either way it takes the calibrated
prefill rate and the KV capacity of a worker. What it answers is a model: its deviation from the measured hit share and
the spread over its runs are shown beside it, and which of the two it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Sum

from controlplane.fleet.models import Worker
from controlplane.reports.figures.capacity import Marks
from controlplane.reports.figures.span import HOUR_S, Subject
from controlplane.reports.figures.what_if_recorded import last_line, replayed
from controlplane.telemetry.breaks import breakers
from controlplane.telemetry.models import PrefixHeatRollup, RequestTotal
from controlplane.telemetry.rollup_rows import segments_q

Figures = dict[str, Any]
SECONDS_MAX = 60
"""Of computing, all scenarios together."""
REQUESTS_MIN = 50
"""In the busiest hour: fewer tell nothing of a load."""
HEADS_MAX = 200
MARK_STEP = 0.1
GOOD_S = 2.0
"""Where no namespace has a TTFT objective."""


def what_if(subject: Subject, marks: Marks, *, prefill: dict[str, float], slo_ms: float | None) -> Figures:
    """{"available": false, "why": …} where it cannot be asked."""
    if subject.tenant:
        return _unavailable("Workers and watermarks are the fleet's: see its own report.")
    hour = _busiest_hour(subject)
    if hour is None or hour["requests"] < REQUESTS_MIN:
        return _unavailable(f"Fewer than {REQUESTS_MIN} requests in the busiest hour.")
    pool = hour["pool"]
    facts = _facts(pool)
    rate = prefill.get(pool)
    if not facts or not rate:
        return _unavailable(f"The prefill rate or the KV capacity of {pool} is not known.")
    if not hour["hit_prompt_tokens"]:
        return _unavailable(f"The workers of {pool} do not name their cached tokens.")
    low, high = marks.get(pool, (0.65, 0.85))
    workers, capacity = facts
    broken = _broken_share(subject, pool)
    question = {
        "requests_per_s": hour["requests"] / HOUR_S,
        "prompt_tokens": round(hour["prompt_tokens"] / hour["requests"]),
        "output_tokens": max(1, round(hour["output_tokens"] / hour["requests"])),
        "hit_share": hour["hit_tokens"] / hour["hit_prompt_tokens"],
        "weights": _weights(subject, pool),
        "prefill_tokens_per_s": rate,
        "kv_capacity_tokens": capacity,
        "good_s": (slo_ms / 1000) if slo_ms else GOOD_S,
        "seconds_max": SECONDS_MAX,
        "scenarios": _scenarios(workers, low, high, broken),
    }
    answer = replayed(pool, hour["start"], question, _ask)
    if answer is None:
        said = _ask(["simulator.fleet.what_if"], question)
        if isinstance(said, str):
            return _unavailable(said)
        answer = said | {"recorded": None}
    return {"available": True, "pool": pool, "hour": hour["start"].isoformat(), "question": question, **answer}


def _scenarios(workers: int, low: float, high: float, broken: float) -> list[Figures]:
    """The fleet as it is, then one change at a time."""
    step = max(1, round(workers * 0.25))
    base = {"workers": workers, "low": low, "high": high, "broken": broken}
    found = [
        {"name": "as it is", **base},
        {"name": f"{step} more worker{'s' if step > 1 else ''}", **base, "workers": workers + step},
    ]
    if workers > step:
        found.append({"name": f"{step} fewer worker{'s' if step > 1 else ''}", **base, "workers": workers - step})
    for change in (MARK_STEP, -MARK_STEP):
        marks = {"low": round(low + change, 4), "high": round(high + change, 4)}
        if 0 < marks["low"] < marks["high"] <= 1:
            words = "higher" if change > 0 else "lower"
            found.append({"name": f"watermarks {abs(change) * 100:.0f} points {words}", **base, **marks})
    if broken:
        found.append({"name": "changing text moved behind the prefix", **base, "broken": 0.0})
    return found


def _busiest_hour(subject: Subject) -> Figures | None:
    rows = RequestTotal.objects.filter(segments_q([subject.hours])).exclude(pool="")
    if subject.pool:
        rows = rows.filter(pool=subject.pool)
    fields = ("requests", "prompt_tokens", "output_tokens", "hit_tokens", "hit_prompt_tokens")
    sums: Any = rows.values("start", "pool").annotate(**{f"all_{name}": Sum(name) for name in fields})
    row = sums.order_by("-all_prompt_tokens", "start").first()
    if row is None:
        return None
    return {"start": row["start"], "pool": row["pool"], **{name: row[f"all_{name}"] for name in fields}}


def _facts(pool: str) -> tuple[int, int] | None:
    """(workers that take requests, KV capacity of one in tokens)."""
    rows = Worker.objects.select_related("pool").filter(pool__slug=pool, state=Worker.State.READY)
    capacities = [
        row.facts["kv_blocks"] * (row.facts.get("block_size") or row.pool.block_size)
        for row in rows
        if row.facts.get("kv_blocks")
    ]
    return (len(rows), min(capacities)) if capacities else None


def _weights(subject: Subject, pool: str) -> list[float]:
    """Requests of the recorded hot prefixes; one head where none was recorded."""
    rows = PrefixHeatRollup.objects.filter(segments_q([subject.hours]), pool=pool)
    sums = rows.values("namespace", "prefix").annotate(all=Sum("requests")).order_by("-all")[:HEADS_MAX]
    return [float(row["all"]) for row in sums if row["all"]] or [1.0]


def _broken_share(subject: Subject, pool: str) -> float:
    """Share of the looked-at prompts whose prefix something changing cuts off, weighed by prompts."""
    found = [row for row in breakers(now=subject.to, window=subject.to - subject.from_) if row.pool == pool]
    looked = {(row.namespace, row.template): row.looked_at for row in found}
    total = sum(looked.values())
    return min(0.95, sum(row.prompts for row in found) / total) if total else 0.0


def _ask(module: list[str], question: Figures) -> Figures | str:
    """The simulator's answer, its last line, or why there is none."""
    command = [sys.executable, "-m", *module]
    limit = timedelta(seconds=2 * SECONDS_MAX)
    try:
        done = subprocess.run(  # noqa: S603  fixed command, figures on its standard input
            command, input=json.dumps(question).encode(), capture_output=True, cwd=settings.BASE_DIR, check=False,
            timeout=limit.total_seconds(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return "The simulator did not answer in time."
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().rpartition("what_if: ")[2]
        return f"The simulator cannot say: {words[-200:] or 'it ended early'}."
    return last_line(done.stdout)


def _unavailable(why: str) -> Figures:
    return {"available": False, "why": why}
