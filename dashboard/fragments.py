"""The one way in which panels become HTML: page load, polling fallback and websocket all come through here."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.template.loader import render_to_string

from dashboard.cache import SingleFlight
from dashboard.data import PageData
from dashboard.live_pages import Viewing
from dashboard.panels import CHARTS, PANELS
from dashboard.scope import PageState


@dataclass(frozen=True, slots=True)
class Rendering:
    """Panels of a page as HTML, each one element with id `panel-<name>`."""

    at: datetime
    panels: dict[str, str]
    _packed: dict[tuple[str, ...], bytes] = field(default_factory=dict, compare=False)

    def message(self, names: Iterable[str]) -> bytes:
        """These panels as the live socket sends them: JSON, gzip. Packed once for all who lack the same."""
        key = tuple(names)
        if key not in self._packed:
            html = "\n".join(self.panels[name] for name in key)
            text = json.dumps({"type": "panels", "at": self.at.timestamp(), "html": html})
            self._packed[key] = gzip.compress(text.encode(), compresslevel=PACKING_LEVEL)
        return self._packed[key]


PACKING_LEVEL = 4
"""Of 1 to 9: a page of 200 KB becomes about 20 KB in 2 ms; more effort saves little."""

_cache: SingleFlight[Rendering] = SingleFlight()


def render_page(view: Viewing, *, now: datetime, since: float = -math.inf) -> Rendering:
    """The live panels of a page, at most a second old and begun at `since` (monotonic clock) or later, shared by all
    who look at the same."""
    return _cache.get(view, lambda: _render(view, now=now), since=since)


def at_hand(view: Viewing, *, since: float = -math.inf) -> Rendering | None:
    """What `render_page` would give without rendering or waiting, or None."""
    return _cache.peek(view, since=since)


def render_panel(name: str, state: PageState, *, may_change: bool, now: datetime) -> str:
    """One panel alone. Raises KeyError for an unknown one."""
    return _render(Viewing((name,), state, may_change), now=now).panels[name]


def forget() -> None:
    """Drop shared renderings: whoever just changed something sees it at once."""
    _cache.clear()


def _render(view: Viewing, *, now: datetime) -> Rendering:
    data = PageData(state=view.state, now=now)
    panels = {name: _panel(name, data, may_change=view.may_change) for name in view.panels}
    return Rendering(at=now, panels=panels)


def _panel(name: str, data: PageData, *, may_change: bool) -> str:
    panel = PANELS[name]
    context = panel.context(data) | {
        "panel": panel,
        "state": data.state,
        "query": data.state.across(),
        "now": data.now,
        "zone": data.state.zone,
        "fresh": panel.fresh(data) if panel.fresh else None,
        "is_chart": name in CHARTS,
        "may_change": may_change,
    }
    return render_to_string(panel.template_name, context)
