"""One staged roll-out: followed live, with its guard, and the two levers."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.errors import ControlError
from controlplane.policies.models import PolicyRevision, Rollout
from controlplane.rollouts.services import advance_rollout, roll_back
from controlplane.tenants.roles import Capability
from dashboard import announce
from dashboard.access import access_of, actor_of, requires, viewer_required
from dashboard.policies import path_of, routing_path
from dashboard.policy_steps import reason_of, revision_of
from dashboard.scope import state_of
from dashboard.views.pages import page

STEPS: dict[str, Callable[..., Rollout]] = {"advance": advance_rollout, "rollback": roll_back}


@viewer_required
@require_safe
def rollout_page(request: HttpRequest, rollout_id: int) -> HttpResponse:
    row = get_object_or_404(Rollout, pk=rollout_id)
    scope_path = routing_path(row.scope) if row.kind == PolicyRevision.Kind.ROUTING else path_of(row.scope)
    return page(
        request,
        "staged",
        "dashboard/policy_rollout.html",
        active="policies",
        item=str(rollout_id),
        row=row,
        scope_path=scope_path,
        is_last=row.stage + 1 == len(row.stages),
        may_step=row.state == Rollout.State.RUNNING and access_of(request).may(Capability.POLICIES_CHANGE),
    )


@requires(Capability.POLICIES_CHANGE)
@require_POST
def rollout_step(request: HttpRequest, rollout_id: int, step: str) -> HttpResponse:
    """`advance`, when nobody moved it since it was shown; `rollback`, whatever stage it has come to meanwhile."""
    if step not in STEPS:
        raise Http404("There is no such step.")
    seen = revision_of(request.POST.get("revision", "")) if step == "advance" else None
    try:
        row = STEPS[step](rollout_id, actor=actor_of(request), if_revision=seen, reason=reason_of(request))
    except ControlError as error:
        if error.status == 404:
            raise Http404(error.message) from error
        messages.error(request, error.message)
    else:
        announce.changed("policy")
        messages.success(request, f"Roll-out {row.pk}: {row.get_state_display().lower()}.")
    query = state_of(request, now=timezone.now()).across()
    return HttpResponseRedirect(f"{reverse('rollout', args=[rollout_id])}?{query}")
