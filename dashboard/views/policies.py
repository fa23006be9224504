"""The policies page: watermarks, their form and history, dry runs, and how far the published version has come."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import ControlError, FieldError, Invalid, NotFound, Stale
from controlplane.policies.effective import effective_policy
from controlplane.policies.models import WatermarkPolicy
from controlplane.policies.services import rollback_policy, set_watermark
from controlplane.policies.watermarks import USE_MIN
from controlplane.rollouts.dry_run import DryRun, dry_run
from controlplane.rollouts.services import start_rollout
from controlplane.tenants.roles import Capability
from dashboard.access import access_of, actor_of, viewer_required
from dashboard.policies import (
    WATERMARK,
    changed_rows,
    meaning,
    own_and_global,
    path_of,
    pool_names,
    routing_path,
    scope_exists,
)
from dashboard.policy_steps import MINUTES, chart_of, ends_at, minutes_of, number_of, published, reason_of, revision_of
from dashboard.scope import state_of
from dashboard.views.pages import page
from dashboard.what_if_form import query_of

SCOPE_MAX = 120
NUMBER_TEXT_MAX = 40


@dataclass(frozen=True, slots=True)
class PolicyForm:
    """What the form shows: texts as typed, percent for the watermarks, and what is wrong with them."""

    scope_id: str
    low: str
    high: str
    dwell_s: str
    revision: str
    ends_min: str = ""
    """Minutes until the values end by themselves; empty = they stay."""
    meaning: str = ""
    errors: dict[str, list[str]] = field(default_factory=dict)
    stale: bool = False

    @property
    def action(self) -> str:
        return path_of(self.scope_id)

    @property
    def seen(self) -> int | None:
        """The revision that was shown with the form."""
        return revision_of(self.revision)


@viewer_required
@require_safe
def policies(request: HttpRequest) -> HttpResponse:
    """The global policy's form; `?scope=&of=` (the choice of another scope) leads to that one's page."""
    scope = request.GET.get("scope", "").strip()[:SCOPE_MAX]
    if not scope:
        return _page(request, _stored_form("global"))
    if not scope_exists(scope):
        messages.error(request, f"There is no {scope}. Write pool:<pool> or namespace:<tenant>/<namespace>.")
        return _page(request, _stored_form("global"), status=404)
    path = routing_path(scope) if request.GET.get("of") == "routing" and scope != "global" else path_of(scope)
    return HttpResponseRedirect(f"{path}?{state_of(request, now=timezone.now()).across()}")


@viewer_required
@require_safe
def effective(request: HttpRequest) -> HttpResponse:
    """What holds for a pool and, if named, a namespace; value by value with its source."""
    pool, namespace = request.GET.get("pool", ""), request.GET.get("ns", "")
    found, error = None, ""
    if pool:
        try:
            found = effective_policy(pool=pool, namespace=namespace)
        except NotFound as missing:
            error = missing.message
    return page(
        request,
        "policies",
        "dashboard/policy_effective.html",
        panels=False,
        found=found,
        error=error,
        pool=pool,
        namespace=namespace,
        pools=pool_names(),
    )


@viewer_required
@require_http_methods(["GET", "HEAD", "POST"])
def policy(request: HttpRequest, kind: str, name: str = "") -> HttpResponse:
    """The form of one scope; POST stores it when nobody changed it since it was shown."""
    scope_id = f"{kind}:{name}" if name else kind
    if request.method in ("GET", "HEAD"):
        return _page(request, _stored_form(scope_id))
    if not scope_exists(scope_id):
        raise Http404("There is no such pool or namespace.")
    if not access_of(request).may(Capability.POLICIES_CHANGE):
        raise PermissionDenied("Changing a watermark needs the operator role.")
    if request.POST.get("how") == "rollback":
        return _roll_back(request, scope_id)
    return _store(request, scope_id)


def _store(request: HttpRequest, scope_id: str) -> HttpResponse:
    """Put the typed values in force, roll them out in stages, or only judge the last minutes by them."""
    form = _typed_form(request, scope_id)
    how = request.POST.get("how", "publish")
    try:
        _check_percent(form)
        values = {"low": _share(form.low), "high": _share(form.high), "dwell_s": number_of(form.dwell_s)}
        if how == "preview":
            preview = dry_run(kind=WATERMARK, scope=scope_id, values=values, minutes=minutes_of(request))
            return _page(request, form, preview=preview)
        if how == "rollout":
            return _rolled_out(request, form, values)
        told = _stored(request, form, values)
    except NotFound as error:
        raise Http404(error.message) from error
    except ControlError as error:
        return _page(request, _with_errors(form, error), status=error.status)
    return _done(request, scope_id, told)


def _stored(request: HttpRequest, form: PolicyForm, values: dict[str, float]) -> str:
    stored = set_watermark(
        actor=actor_of(request),
        scope=form.scope_id,
        expires_at=ends_at(form.ends_min),
        if_revision=form.seen,
        reason=reason_of(request),
        **values,  # type: ignore[arg-type]
    )
    return f"Saved {form.scope_id}: {meaning(stored)}"


def _rolled_out(request: HttpRequest, form: PolicyForm, values: dict[str, float]) -> HttpResponse:
    """Begun, and followed on its own page."""
    begun = start_rollout(
        actor=actor_of(request),
        kind=WATERMARK,
        scope=form.scope_id,
        values=values,
        if_revision=form.seen,
        reason=reason_of(request),
    )
    shares = " → ".join(f"{share:.0%}" for share in begun.stages)
    published(request, f"Roll-out {begun.pk} of {form.scope_id} began: {shares} of the routers.")
    return HttpResponseRedirect(reverse("rollout", args=[begun.pk]))


def _roll_back(request: HttpRequest, scope_id: str) -> HttpResponse:
    """To the revision of the clicked row; what the operator saw is compared."""
    form = _stored_form(scope_id)
    try:
        done = rollback_policy(
            kind=WATERMARK,
            scope=scope_id,
            actor=actor_of(request),
            to=revision_of(request.POST.get("to", "")),
            if_revision=revision_of(request.POST.get("revision", "")),
            reason=reason_of(request),
        )
    except ControlError as error:
        return _page(request, _with_errors(form, error), status=error.status)
    return _done(request, scope_id, f"{scope_id} is as in revision {done.repeats} again (revision {done.number}).")


def _done(request: HttpRequest, scope_id: str, told: str) -> HttpResponse:
    published(request, told)
    return HttpResponseRedirect(f"{path_of(scope_id)}?{state_of(request, now=timezone.now()).across()}")


def _page(request: HttpRequest, form: PolicyForm, *, status: int = 200, preview: DryRun | None = None) -> HttpResponse:
    return page(
        request,
        "policies",
        "dashboard/policies.html",
        status=status,
        form=form,
        preview=preview,
        load_chart=chart_of(preview),
        what_if_query=query_of(preview.scope, preview.scenario) if preview else "",
        minutes=MINUTES,
        history=changed_rows(WATERMARK, form.scope_id),
        kind=WATERMARK,
    )


def _stored_form(scope_id: str) -> PolicyForm:
    """The stored values, or those of the global policy for a scope without one of its own. Raises Http404."""
    stored, wider = own_and_global(scope_id)
    if stored is None and not scope_exists(scope_id):
        raise Http404("There is no such pool or namespace.")
    shown = stored or wider or WatermarkPolicy(scope=WatermarkPolicy.Scope.GLOBAL)
    return PolicyForm(
        scope_id=scope_id,
        low=f"{shown.low * 100:g}",
        high=f"{shown.high * 100:g}",
        dwell_s=f"{shown.dwell_s:g}",
        revision=str(stored.revision if stored else 0),
        meaning=meaning(shown) if stored else f"No policy of its own: the wider one holds. {meaning(shown)}",
    )


def _typed_form(request: HttpRequest, scope_id: str) -> PolicyForm:
    names = ("low", "high", "dwell_s", "revision", "ends_min")
    low, high, dwell_s, revision, ends_min = (request.POST.get(name, "").strip()[:NUMBER_TEXT_MAX] for name in names)
    return PolicyForm(scope_id=scope_id, low=low, high=high, dwell_s=dwell_s, revision=revision, ends_min=ends_min)


def _with_errors(form: PolicyForm, error: ControlError) -> PolicyForm:
    by_field: dict[str, list[str]] = {}
    for fault in error.errors or [FieldError(field="", message=error.message)]:
        name = _FIELDS.get(fault["field"], "form")
        by_field.setdefault(name, []).append(fault["message"])
    return PolicyForm(
        scope_id=form.scope_id,
        low=form.low,
        high=form.high,
        dwell_s=form.dwell_s,
        revision=form.revision,
        ends_min=form.ends_min,
        errors=by_field,
        stale=isinstance(error, Stale),
    )


_FIELDS = {"low": "low", "high": "high", "dwell_s": "dwell_s", "expires_at": "ends_min"}
"""Field of the service → field of the form."""


def _check_percent(form: PolicyForm) -> None:
    """The service's bounds in the form's unit. Raises Invalid."""
    outside = [
        FieldError(field=name, message=f"{name.capitalize()} must be between {USE_MIN * 100:g} % and 100 %.")
        for name, text in (("low", form.low), ("high", form.high))
        if math.isfinite(_share(text)) and not USE_MIN <= _share(text) <= 1
    ]
    if outside:
        raise Invalid(outside[0]["message"], errors=outside)


def _share(percent: str) -> float:
    """Percent as typed → share 0…1; NaN for what is no number, which the service refuses by name of the field."""
    return number_of(percent.removesuffix("%")) / 100
