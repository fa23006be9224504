"""Hot spots: the hottest prefixes, one of them with what spreading it would do, and placement rules."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import ControlError
from controlplane.placements.models import HOMES_MAX, PlacementRule
from controlplane.placements.selectors import in_force, placements
from controlplane.placements.services import revert_placement, spread_prefix
from controlplane.telemetry.hotspot_figures import HotSpot
from controlplane.telemetry.hotspots import spots_of
from controlplane.telemetry.spread import Spread, spreads
from controlplane.telemetry.spread_facts import known_of
from controlplane.telemetry.windows import Scope
from controlplane.tenants.roles import Capability
from dashboard import announce, numbers
from dashboard.access import access_of, actor_of, requires, requires_somewhere
from dashboard.scope import state_of
from dashboard.views.pages import page

DURATIONS = (
    (1800, "30 min"),
    (3600, "1 h"),
    (4 * 3600, "4 h"),
    (86_400, "24 h"),
    (7 * 86_400 - 60, "7 days"),
)
DEFAULT_FOR_S = 3600
ROWS_MAX = 12
"""Numbers of homes that are offered: beyond them a prefix is spread over all of a pool by its load."""
PREFIX_LENGTH = 16

metrics_viewer = requires_somewhere(Capability.METRICS_VIEW)
may_place = requires(Capability.POLICIES_CHANGE)


@metrics_viewer
@require_safe
def hotspots(request: HttpRequest) -> HttpResponse:
    return page(request, "hotspots", "dashboard/hotspots.html")


@metrics_viewer
@require_http_methods(["GET", "HEAD", "POST"])
def prefix(request: HttpRequest, pool: str, prefix: str) -> HttpResponse:
    """One prefix; POST spreads it."""
    if len(prefix) != PREFIX_LENGTH:
        raise Http404("There is no such prefix.")
    if request.method != "POST":
        return _page(request, pool, prefix)
    if not access_of(request).may(Capability.POLICIES_CHANGE):
        raise PermissionDenied("Spreading a prefix needs the operator role.")
    typed = {name: request.POST.get(name, "").strip()[:500] for name in ("namespace", "homes", "for_s", "reason")}
    try:
        rule = spread_prefix(
            actor=actor_of(request),
            namespace=typed["namespace"],
            pool=pool,
            prefix=prefix,
            homes=_whole(typed["homes"]),
            until=timezone.now() + timedelta(seconds=_whole(typed["for_s"])),
            reason=typed["reason"],
        )
    except ControlError as error:
        return _page(request, pool, prefix, status=error.status, errors=[error.message], **typed)
    announce.changed("policy")
    messages.success(
        request, f"Prefix {prefix} goes to at least {rule.homes} workers as soon as routers have the rule."
    )
    return HttpResponseRedirect(f"{reverse('prefix', args=(pool, prefix))}?{_query(request)}")


@may_place
@require_http_methods(["GET", "HEAD", "POST"])
def revert(request: HttpRequest, placement_id: int) -> HttpResponse:
    """GET says what it means; POST ends the rule."""
    rule = placements().filter(pk=placement_id).first()
    if rule is None:
        raise Http404("There is no such placement rule.")
    if request.method != "POST":
        return page(request, "hotspots", "dashboard/confirm_revert.html", panels=False, rule=rule)
    seen = request.POST.get("revision", "")
    try:
        revert_placement(
            placement_id,
            actor=actor_of(request),
            if_revision=_whole(seen) or None,
            reason=request.POST.get("reason", "").strip()[:500],
        )
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("policy")
        messages.success(request, f"The rule of prefix {rule.prefix} is reverted: its load alone spreads it.")
    return HttpResponseRedirect(f"{reverse('hotspots')}?{_query(request)}")


def _page(
    request: HttpRequest, pool: str, prefix: str, *, status: int = 200, errors: list[str] | None = None, **typed: str
) -> HttpResponse:
    context: dict[str, Any] = {"pool": pool, "prefix": prefix, "errors": errors or [], "preview": None}
    if access_of(request).may(Capability.FLEET_VIEW):
        context |= _spreading(request, pool, prefix, typed)
    return page(
        request, "prefix", "dashboard/prefix.html", status=status, active="hotspots", item=f"{pool}/{prefix}", **context
    )  # fmt: skip


def _spreading(request: HttpRequest, pool: str, prefix: str, typed: dict[str, str]) -> dict[str, Any]:
    now = timezone.now()
    scope = state_of(request, now=now).scope(now)
    spots = spots_of(scope, pool, prefix, now=now)
    offered = _offered(spots, scope, now)
    homes = _whole(typed.get("homes", "")) or (min(offered, key=lambda row: abs(row.homes - 3)).homes if offered else 0)
    return {
        "preview": offered,
        "present": _present(spots[0]) if spots else "",
        "rules": _rules(pool, prefix, now),
        "may_place": access_of(request).may(Capability.POLICIES_CHANGE),
        "namespaces": [spot.namespace for spot in spots],
        "namespace": typed.get("namespace", ""),
        "homes": homes,
        "for_s": _whole(typed.get("for_s", "")) or DEFAULT_FOR_S,
        "reason": typed.get("reason", ""),
        "durations": DURATIONS,
    }


def _offered(spots: list[HotSpot], scope: Scope, now: datetime) -> list[Spread]:
    known = known_of(spots[0], scope, now=now) if spots else None
    return spreads(known, homes_max=min(ROWS_MAX, HOMES_MAX)) if known else []


def _present(spot: HotSpot) -> str:
    """How it is spread at present, in one sentence."""
    workers = "1 worker" if spot.serving == 1 else f"{spot.serving} workers"
    by_load = "unknown" if spot.homes is None else numbers.count(spot.homes)
    return (
        f"{workers} served it, the busiest {numbers.percent(spot.top_share)} of it; by load and rule it has {by_load} "
        f"home{'' if spot.homes == 1 else 's'}. A rule asks for at least so many; the load may ask for more."
    )


def _rules(pool: str, prefix: str, now: datetime) -> list[PlacementRule]:
    return list(in_force(now=now).filter(pool__slug=pool, prefix=prefix))


def _query(request: HttpRequest) -> str:
    return state_of(request, now=timezone.now()).across()


def _whole(text: str) -> int:
    """0 for what is no whole number: the service then names the field."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
