"""What a rule may watch: a closed set, each with its unit, what it is measured of, and when nobody can tell. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Of(StrEnum):
    """What one value of a measure is about: a rule has as many alerts as it finds subjects in breach."""

    SCOPE = "scope"
    """The rule's own tenant, pool or the fleet."""
    WORKER = "worker"
    TENANT = "tenant"
    ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    label: str
    unit: str
    """`share` (0…1), `ms`, `s`, `count` or `ratio`."""
    of: Of
    meaning: str
    unknown_when: str
    by_tenant: bool = False
    """Whether it can be told of one tenant."""
    by_pool: bool = False
    has_window: bool = True
    """Whether it sums over the rule's window; else it is of the moment."""
    has_history: bool = True
    """Whether the last day can be looked at again."""


SAMPLES_MIN = 20
"""Requests below which a share or a quantile says nothing."""

MEASURES = {
    measure.name: measure
    for measure in (
        Measure(
            "hit_share",
            "Hit-token share",
            "share",
            Of.SCOPE,
            "Hit tokens ÷ prompt tokens of requests whose worker named its cached tokens.",
            f"fewer than {SAMPLES_MIN} requests with known cached tokens in the window",
            by_tenant=True,
            by_pool=True,
        ),
        Measure(
            "ttft_p95_ms",
            "TTFT p95",
            "ms",
            Of.SCOPE,
            "95th percentile of the time to the first token, hits and misses together.",
            f"fewer than {SAMPLES_MIN} first tokens in the window",
            by_tenant=True,
            by_pool=True,
        ),
        Measure(
            "goodput_share",
            "Goodput in SLO",
            "share",
            Of.SCOPE,
            "Requests within their namespace's TTFT objective ÷ requests that have one.",
            f"fewer than {SAMPLES_MIN} requests with an objective in the window",
            by_tenant=True,
            by_pool=True,
        ),
        Measure(
            "error_share",
            "Error share",
            "share",
            Of.SCOPE,
            "Requests that failed in the fleet ÷ requests. What clients do wrong does not count.",
            f"fewer than {SAMPLES_MIN} requests in the window",
            by_tenant=True,
            by_pool=True,
        ),
        Measure(
            "violations",
            "Open isolation violations",
            "count",
            Of.SCOPE,
            "Isolation violations that nobody has acknowledged.",
            "none is open, and no answer was checked in the window",
            by_tenant=True,
            by_pool=True,
        ),
        Measure(
            "critical_findings",
            "Critical findings",
            "count",
            Of.SCOPE,
            "Open critical findings that nobody has acknowledged, isolation violations apart.",
            "never",
            has_window=False,
            has_history=False,
        ),
        Measure(
            "worker_silent_s",
            "Worker silent",
            "s",
            Of.WORKER,
            "Seconds since the last good poll of a worker that should serve.",
            "it was never polled, or the pollers themselves stand still",
            by_pool=True,
            has_window=False,
        ),
        Measure(
            "event_gaps",
            "KV event gaps",
            "count",
            Of.WORKER,
            "Times that KV events of a worker were lost in the window.",
            "its KV events were not heard in the window",
            by_pool=True,
        ),
        Measure(
            "kv_use",
            "KV use",
            "share",
            Of.WORKER,
            "KV blocks of running requests ÷ all, mean of the window.",
            "it was not polled in the window",
            by_pool=True,
        ),
        Measure(
            "budget_use",
            "Budget use",
            "ratio",
            Of.TENANT,
            "Uncached prompt tokens a second ÷ the tenant's budget over all routers that report.",
            "no router reported in the last ten minutes",
            by_tenant=True,
            has_history=False,
        ),
        Measure(
            "router_silent_s",
            "Router silent",
            "s",
            Of.ROUTER,
            "Seconds since a router that served within the last day asked for its policy.",
            "no router served within the last day",
            has_window=False,
            has_history=False,
        ),
        Measure(
            "work_given_up",
            "Work given up",
            "count",
            Of.SCOPE,
            "Reports, canaries and other tasks given up after three deliveries and not begun anew.",
            "never",
            has_window=False,
            has_history=False,
        ),
    )
}
CHOICES = [(measure.name, measure.label) for measure in MEASURES.values()]
