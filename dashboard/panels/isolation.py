"""Panels of isolation."""

from __future__ import annotations

from collections import Counter

from controlplane.isolation.canary import ENDPOINTS
from controlplane.telemetry.sources import router_data_age_s
from dashboard import freshness
from dashboard.data import PageData
from dashboard.freshness import Freshness
from dashboard.panels.base import Context, Panel

CANARY_ROWS = 50


def _isolation(data: PageData) -> Context:
    return _coverage(data) | {"violations": data.violations, "brief": False}


def _coverage(data: PageData) -> Context:
    """Without the list of violations: the isolation page has them as a table."""
    coverage = data.coverage
    total = None if coverage.checked is None else coverage.checked + (coverage.unknown or 0)
    return {
        "coverage": coverage,
        "checked_share": None if not total else (coverage.checked or 0) / total,
        "brief": True,
    }


def _of_routers(data: PageData) -> Freshness:
    """One query: this page has no tiles whose figures could tell."""
    return freshness.of_ages(data, [router_data_age_s(data.now)], "routers")


def _canaries(data: PageData) -> Context:
    """What deserves a look first; of a large fleet the rest is counted."""
    rows = sorted(data.canaries, key=lambda row: (min(cell.gravity for cell in row.cells), row.worker_id))
    cells = [cell for row in rows for cell in row.cells]
    verdicts = Counter(cell.result.verdict for cell in cells if cell.result)
    return {
        "rows": rows[:CANARY_ROWS],
        "more": max(0, len(rows) - CANARY_ROWS),
        "endpoints": list(ENDPOINTS),
        "verdicts": verdicts,
        "total": len(cells) - verdicts["not_offered"],
        "old": sum(cell.is_old for cell in cells),
        "never": sum(cell.result is None for cell in cells),
    }


PANELS = (
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
        _of_routers,
        "isolation",
        of_tenants=True,
    ),
    Panel(
        "canaries",
        "Canaries",
        "Each endpoint of each worker is asked hourly with salts of its own. Isolated: the own salt hits, another "
        "or none does not. Inconclusive: nothing hits, so nothing is shown.",
        _canaries,
    ),
)
