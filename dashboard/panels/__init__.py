"""The panels by name. A module for each group of pages has a tuple `PANELS`; it is named here."""

from __future__ import annotations

from dashboard.panels import (
    alerts,
    checklist,
    evictions,
    fleet,
    hits,
    hotspots,
    isolation,
    policies,
    tenants,
    ttft,
    workers,
)
from dashboard.panels.base import Panel

_MODULES = (evictions, alerts, checklist, fleet, hits, hotspots, isolation, policies, tenants, ttft, workers)

PANELS: dict[str, Panel] = {panel.name: panel for module in _MODULES for panel in module.PANELS}
CHARTS = tuple(name for name, panel in PANELS.items() if panel.table)
"""Panels with a figure, a table and a CSV."""
