"""The one way in which panels become HTML: page load, polling fallback and websocket all come through here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.template.loader import render_to_string

from dashboard.cache import SingleFlight
from dashboard.data import PageData
from dashboard.panels import CHARTS, PANELS
from dashboard.scope import PageState

PAGES: dict[str, tuple[str, ...]] = {
    "fleet": ("alerts",
        "verdict", "tiles", "sources", "ttft", "heat", "strip", "churn", "attention", "hits", "isolation", "hot",
    ),
    "workers": ("alerts", "workers", "origins"),
    "policies": ("alerts", "watermarks", "rollout"),
    "isolation": ("alerts", "coverage",),
}  # fmt: skip
"""Live panels of each page."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """Panels of a page as HTML, each one element with id `panel-<name>`."""

    at: datetime
    panels: dict[str, str]


_cache: SingleFlight[Rendering] = SingleFlight()


def render_page(page: str, state: PageState, *, may_change: bool, now: datetime) -> Rendering:
    """The live panels of `page`, at most a second old and shared by all who look at the same.

    Raises KeyError for a page without live panels.
    """
    names = PAGES[page]
    return _cache.get((page, state, may_change), lambda: _render(names, state, may_change=may_change, now=now))


def render_panel(name: str, state: PageState, *, may_change: bool, now: datetime) -> str:
    """One panel alone. Raises KeyError for an unknown one."""
    return _render((name,), state, may_change=may_change, now=now).panels[name]


def forget() -> None:
    """Drop shared renderings: whoever just changed something sees it at once."""
    _cache.clear()


def _render(names: tuple[str, ...], state: PageState, *, may_change: bool, now: datetime) -> Rendering:
    data = PageData(state=state, now=now)
    return Rendering(at=now, panels={name: _panel(name, data, may_change=may_change) for name in names})


def _panel(name: str, data: PageData, *, may_change: bool) -> str:
    panel = PANELS[name]
    context = panel.context(data) | {
        "panel": panel,
        "state": data.state,
        "query": data.state.query(),
        "now": data.now,
        "zone": data.state.zone,
        "fresh": panel.fresh(data) if panel.fresh else None,
        "is_chart": name in CHARTS,
        "may_change": may_change,
    }
    return render_to_string(panel.template_name, context)
