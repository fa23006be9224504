"""One tenant's status page, for the tenant's own people and for who looks after them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.tenants.roles import Capability
from dashboard.access import access_of, requires_in_tenant, requires_somewhere
from dashboard.scope import state_of
from dashboard.views.pages import page


@requires_somewhere(Capability.METRICS_VIEW)
@require_safe
def status(request: HttpRequest) -> HttpResponse:
    """To the tenant that the scope names, or to one's own; who sees all of them chooses from the list."""
    state, mine = state_of(request, now=timezone.now()), access_of(request).tenants(Capability.METRICS_VIEW)
    tenant = state.tenant or (min(mine) if mine else "")
    path = reverse("status-of", args=[tenant]) if tenant else reverse("tenants")
    return HttpResponseRedirect(f"{path}?{state.across()}")


@requires_in_tenant(Capability.METRICS_VIEW)
@require_safe
def status_of(request: HttpRequest, tenant: str) -> HttpResponse:
    """Http404 for a tenant that does not exist: its panels say so."""
    # The address names the tenant, whatever the scope in the query says.
    query = request.GET.copy()
    query["tenant"] = tenant
    if not query.get("ns", "").startswith(f"{tenant}/"):
        query["ns"] = ""
    request.GET = query  # type: ignore[assignment]  # Django freezes its own
    return page(request, "status", "dashboard/status.html", tenant=tenant)
