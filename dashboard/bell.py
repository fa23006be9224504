"""The bell on pages that no socket keeps current: what fires of all that the caller may see, asked again by a poll."""

from __future__ import annotations

from datetime import datetime

from django.template.loader import render_to_string

from controlplane.alerts.selectors import bell
from controlplane.tenants.roles import Access, Capability


def polled_bell(access: Access, query: str, *, now: datetime) -> str:
    """HTML that `bell.js` asks for again; "" for who may see no alert. Members of tenants hear theirs. One query."""
    if not access.may_somewhere(Capability.ALERTS_VIEW):
        return ""
    counted = bell(now=now, tenants=access.tenants(Capability.ALERTS_VIEW))
    return render_to_string("dashboard/_fragments/alerts.html", {"bell": counted, "query": query, "polled": True})
