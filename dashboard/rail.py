"""The rail: the pages in groups, in the order in which an operator asks."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.tenants.roles import Access, Capability

CACHING, MANAGED, EXPLAINED, FOLLOWED = "Caching", "Manage", "Explain", "Follow up"
GROUPS = (CACHING, MANAGED, EXPLAINED, FOLLOWED)


@dataclass(frozen=True, slots=True)
class RailItem:
    page: str
    label: str
    icon: str
    path: str
    key: str
    """Second key of the shortcut `g <key>`."""
    capability: Capability = Capability.FLEET_VIEW
    of_tenants: bool = False
    """Also of use to who holds the capability in single tenants only."""
    group: str = CACHING
    quick: bool = False
    """In the bar at the foot of a narrow screen; the others are behind its menu."""

    def shown_to(self, access: Access) -> bool:
        return access.may_somewhere(self.capability) if self.of_tenants else access.may(self.capability)


RAIL = (
    # Caching
    RailItem("fleet", "Fleet", "dashboard", "/", "f", quick=True),
    RailItem("hits", "Hit tokens", "target", "/hits/", "k", Capability.METRICS_VIEW, of_tenants=True),
    RailItem("hotspots", "Hot spots", "flame", "/hotspots/", "x", Capability.METRICS_VIEW, of_tenants=True),
    RailItem("evictions", "Evictions", "recycle", "/evictions/", "e"),
    RailItem("ttft", "TTFT", "bolt", "/ttft/", "d", Capability.METRICS_VIEW, of_tenants=True),
    # Manage
    RailItem("tenants", "Tenants", "users", "/tenants/", "t", Capability.TENANTS_VIEW, of_tenants=True, group=MANAGED),
    RailItem(
        "templates", "Templates", "template", "/templates/", "m", Capability.TEMPLATES_VIEW, of_tenants=True,
        group=MANAGED,
    ),
    RailItem("policies", "Policies", "adjustments-horizontal", "/policies/", "p", group=MANAGED),
    RailItem("workers", "Workers", "server-2", "/workers/", "w", group=MANAGED, quick=True),
    # Explain
    RailItem(
        "requests", "Requests", "route", "/requests/", "r", Capability.REQUESTS_VIEW, of_tenants=True, group=EXPLAINED,
        quick=True,
    ),
    RailItem(
        "isolation", "Isolation", "shield-check", "/isolation/", "i", Capability.ISOLATION_VIEW, of_tenants=True,
        group=EXPLAINED, quick=True,
    ),
    RailItem("checklist", "Checklist", "list-check", "/checklist/", "c", group=EXPLAINED),
    RailItem(
        "what-if", "What if", "arrows-diff", "/what-if/", "q", Capability.WHAT_IFS_VIEW, of_tenants=True,
        group=EXPLAINED,
    ),
    # Follow up
    RailItem(
        "status", "Status", "circle-check", "/status/", "s", Capability.METRICS_VIEW, of_tenants=True, group=FOLLOWED
    ),
    RailItem("alerts", "Alerts", "bell", "/alerts/", "a", Capability.ALERTS_VIEW, of_tenants=True, group=FOLLOWED),
    RailItem(
        "reports", "Reports", "report-analytics", "/reports/", "o", Capability.REPORTS_VIEW, of_tenants=True,
        group=FOLLOWED,
    ),
    RailItem("webhooks", "Webhooks", "webhook", "/webhooks/", "h", Capability.INTEGRATIONS_VIEW, group=FOLLOWED),
    RailItem("audit", "Audit", "history", "/audit/", "u", Capability.AUDIT_VIEW, of_tenants=True, group=FOLLOWED),
)  # fmt: skip


def rail_of(access: Access) -> list[tuple[str, list[RailItem]]]:
    """The groups that hold anything for this caller, each with its items."""
    shown = [item for item in RAIL if item.shown_to(access)]
    groups = [(group, [item for item in shown if item.group == group]) for group in GROUPS]
    return [(group, items) for group, items in groups if items]
