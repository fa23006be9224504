"""Slices of a large fleet: by router, by worker and by active namespace, made of the helper tables of `big`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from django.db import connection, models

from controlplane.telemetry.models import SliceRollup
from controlplane.telemetry.windows import SLICE_RETENTION_S, floor_to
from router.contract.cohorts import CACHE_CLASSES, PROMPT_TOKENS_FROM, REQUESTS_BESIDE_FROM, cohort_key
from router.contract.histogram import bucket_of

ACTIVE = {60: 120, 3600: 1000, 86_400: 2500}
"""Namespaces with traffic in one bucket of each width."""
FINE_BUCKETS = {60: 200, 3600: 10_000, 86_400: 10_000}
"""Buckets of each width that are filled, from the newest: a week of minutes of all would be gigabytes."""
Insert = Callable[[object, type[models.Model], dict[str, str], str], None]


def fill(cursor, insert: Insert, *, routers: int, spaces: int, days: float, now: datetime) -> None:
    cursor.execute(f"CREATE TEMPORARY TABLE big_slices (n integer, width_s integer, start_at {_time_type()})")
    cursor.executemany("INSERT INTO big_slices VALUES (%s, %s, %s)", list(_buckets(days, now)))
    cursor.execute("CREATE TEMPORARY TABLE big_routers (n integer, router text)")
    cursor.executemany("INSERT INTO big_routers VALUES (%s, %s)", [(n, f"router-{n}") for n in range(routers)])
    for width_s, active in ACTIVE.items():
        stride = max(1, spaces // active)
        where = f"WHERE b.width_s = {width_s} AND (s.n + b.n * 7) % {stride} = 0"
        insert(cursor, SliceRollup, _values("namespace", "s.namespace", few=True) | {"tenant": "s.tenant"},
               f"big_slices b CROSS JOIN big_spaces s {where}")  # fmt: skip
    workers = "(SELECT w.n, w.worker, MIN(x.pool) AS pool, MIN(x.model) AS model FROM big_workers w " \
              "JOIN big_spaces x ON x.worker = w.worker GROUP BY w.n, w.worker)"  # fmt: skip
    insert(cursor, SliceRollup, _values("worker", "s.worker", few=True), f"big_slices b CROSS JOIN {workers} s")
    insert(cursor, SliceRollup, _values("router", "r.router", few=False),
           "big_slices b CROSS JOIN big_pools s CROSS JOIN big_routers r")  # fmt: skip
    for name in ("slices", "routers"):
        cursor.execute(f"DROP TABLE big_{name}")


def _buckets(days: float, now: datetime) -> Iterator[tuple[int, int, object]]:
    adapt = connection.ops.adapt_datetimefield_value
    for width_s, kept_s in SLICE_RETENTION_S.items():
        last, span_s = floor_to(now, width_s), min(days * 86_400, kept_s)
        for n in range(min(int(span_s // width_s) + 1, FINE_BUCKETS[width_s])):
            yield n, width_s, adapt(last - timedelta(seconds=n * width_s))


def _time_type() -> str:
    return "timestamptz" if connection.vendor == "postgresql" else "datetime"


def _values(slice_: str, name: str, *, few: bool) -> dict[str, str]:
    live = "(1 + (b.n + s.n) % 5) * b.width_s"
    return {
        "width_s": "b.width_s",
        "start": "b.start_at",
        "slice": f"'{slice_}'",
        "name": name,
        "pool": "s.pool",
        "model": "s.model",
        "requests": f"{live} / 10",
        "prompt_tokens": f"{live} * 320",
        "repeated_tokens": f"{live} * 270",
        "best_hit_tokens": f"{live} * 240",
        "expected_hit_tokens": f"{live} * 220",
        "hit_tokens": f"{live} * 210",
        "unjudged_tokens": f"{live} * 4",
        "saved_prefill_ms": f"{live} * 23.0",
        "routing_loss": """'{"load":900,"choice":300}'""",
        "hit_size": """'{"140":5,"150":9,"160":7}'""",
        "cohorts": f"'{json.dumps(_cohorts(few=few))}'",
    }


def _cohorts(*, few: bool) -> dict[str, int]:
    """Hits and misses of each cohort, of two lengths and loads or of all, in two or eight neighbouring buckets."""
    lengths, loads, width = (range(2), range(2), 2) if few else (range(5), range(4), 8)
    found = {}
    for length in lengths:
        for load in loads:
            for cache in range(len(CACHE_CLASSES) - 1):
                middle = bucket_of((60 + 40 * length) * (1 + load / 4) * (1 + cache))
                for step in range(width):
                    prompt, beside = PROMPT_TOKENS_FROM[length], REQUESTS_BESIDE_FROM[load]
                    key = cohort_key(prompt_tokens=prompt, beside=beside, cache=cache, bucket=middle + step)
                    found[str(key)] = 3 + step
    return found
