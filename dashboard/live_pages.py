"""The live pages, and what of each a person sees: all of it, or what belongs to the tenants they have a role in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django.core.exceptions import PermissionDenied
from django.http import Http404

from controlplane.tenants.roles import Access, Capability
from dashboard.panels import PANELS
from dashboard.scope import PageState


@dataclass(frozen=True, slots=True)
class LivePage:
    panels: tuple[str, ...]
    capability: Capability = Capability.FLEET_VIEW
    """Held in the whole fleet it shows every panel."""
    of_tenants: bool = False
    """Whether it is also for who holds the capability in single tenants: they see the panels that are of the tenant."""


PAGES: dict[str, LivePage] = {
    "fleet": LivePage(
        (
            "alerts", "verdict", "tiles", "sources", "ttft", "heat", "strip", "churn", "attention", "hits", "isolation",
        )
    ),
    "hits": LivePage(
        (
            "alerts", "reach-headline", "reach-tiles", "reach-funnel", "reach-series", "reach-namespaces",
            "reach-models", "reach-workers", "reach-templates", "hit-sizes",
        ),
        Capability.METRICS_VIEW,
        of_tenants=True,
    ),
    "ttft": LivePage(
        ("alerts", "delta-verdict", "delta-choice", "delta-cohorts", "delta-lengths"),
        Capability.METRICS_VIEW,
        of_tenants=True,
    ),
    "workers": LivePage(("alerts", "leaving", "workers", "origins")),
    "worker": LivePage(("alerts", "worker_leaving", "worker_now")),
    "hotspots": LivePage(
        ("alerts", "prefixes", "imbalance", "balance", "concentration", "match", "placements"),
        Capability.METRICS_VIEW,
        of_tenants=True,
    ),
    "evictions": LivePage(
        (
            "alerts", "eviction_facts", "churn", "watermark_bands", "lifetimes", "evicters", "eviction_namespaces",
            "eviction_workers",
        )
    ),
    "prefix": LivePage(
        ("alerts", "prefix_facts", "prefix_trend", "prefix_workers", "prefix_askers", "prefix_decisions"),
        Capability.METRICS_VIEW,
        of_tenants=True,
    ),
    "policies": LivePage(("alerts", "watermarks", "routing", "rollouts", "rollout")),
    "staged": LivePage(("alerts", "rollout_one")),
    "isolation": LivePage(("alerts", "canaries", "coverage"), Capability.ISOLATION_VIEW, of_tenants=True),
    "checklist": LivePage(("alerts", "checklist")),
    "alerts": LivePage(("alerts", "alerts_open", "alert_rules"), Capability.ALERTS_VIEW, of_tenants=True),
    "status": LivePage(
        (
            "status_verdict", "status_tiles", "status_hits", "status_ttft", "status_budget", "status_incidents",
            "status_namespaces", "status_changes",
        ),
        Capability.METRICS_VIEW,
        of_tenants=True,
    ),
    "revocation": LivePage(("revocation",), Capability.ISOLATION_VIEW, of_tenants=True),
    "onboarding": LivePage(("first_steps",), Capability.TENANTS_CHANGE),
    "first_run": LivePage(("first_run",)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Viewing:
    """What one person sees of a page. Equal ones share one rendering."""

    panels: tuple[str, ...]
    state: PageState
    may_change: bool


def viewing(name: str, state: PageState, access: Access) -> Viewing:
    """Raises Http404 for an unknown page and for a foreign tenant, PermissionDenied for who may not see the page."""
    if name not in PAGES:
        raise Http404("There is no such page.")
    page = PAGES[name]
    may_change = access.may(Capability.FLEET_CHANGE)
    if access.may(page.capability):
        shown = page.panels if access.may(Capability.FLEET_VIEW) else _of_tenants(page.panels)
        return Viewing(shown, state, may_change)
    if not page.of_tenants:
        raise PermissionDenied(f"Your role does not allow this ({page.capability}). Ask an administrator.")
    return Viewing(_of_tenants(page.panels), in_own_tenant(state, access, page.capability), may_change)


def _of_tenants(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if PANELS[name].of_tenants)


def in_own_tenant(state: PageState, access: Access, capability: Capability) -> PageState:
    """The state narrowed to a tenant in which the capability is held: the named one, else the first.

    Who holds it in the whole fleet keeps the state as it is. Raises Http404 for a foreign tenant, as for an absent one,
    PermissionDenied for who holds it nowhere.
    """
    own = access.tenants(capability)
    if own is None:
        return state
    if not own:
        raise PermissionDenied(f"Your role does not allow this ({capability}). Ask an administrator.")
    tenant = state.tenant or min(own)
    if tenant not in own:
        raise Http404("There is no such tenant.")
    namespace = state.ns if state.ns.startswith(f"{tenant}/") else ""
    return replace(state, tenant=tenant, ns=namespace)
