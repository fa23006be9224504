"""The policies page: watermarks, their form, and how far the published version has come."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import ControlError, FieldError, Invalid, NotFound, Stale
from controlplane.policies.models import WatermarkPolicy
from controlplane.policies.selectors import find_policy
from controlplane.policies.services import set_watermark
from controlplane.policies.watermarks import USE_MIN
from controlplane.snapshots.selectors import rollout
from dashboard import announce
from dashboard.access import actor_of, signed_in, viewer_required
from dashboard.policies import meaning, path_of, scope_exists, scopes_without_policy
from dashboard.scope import state_of
from dashboard.views.pages import page

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
    meaning: str = ""
    errors: dict[str, list[str]] = field(default_factory=dict)
    stale: bool = False

    @property
    def action(self) -> str:
        return path_of(self.scope_id)


@viewer_required
@require_safe
def policies(request: HttpRequest) -> HttpResponse:
    """The global policy's form; `?scope=` (the choice of another scope) leads to that one's page."""
    scope = request.GET.get("scope", "")
    if scope:
        return HttpResponseRedirect(f"{path_of(scope[:SCOPE_MAX])}?{state_of(request, now=timezone.now()).query()}")
    return _page(request, _stored_form("global"))


@viewer_required
@require_http_methods(["GET", "HEAD", "POST"])
def policy(request: HttpRequest, kind: str, name: str = "") -> HttpResponse:
    """The form of one scope; POST stores it when nobody changed it since it was shown."""
    scope_id = f"{kind}:{name}" if name else kind
    if not scope_exists(scope_id):
        raise Http404("There is no such pool or namespace.")
    if request.method != "POST":
        return _page(request, _stored_form(scope_id))
    if not signed_in(request).may_change:
        raise PermissionDenied("Changing a watermark needs the operator role.")
    return _store(request, scope_id)


def _store(request: HttpRequest, scope_id: str) -> HttpResponse:
    form = _typed_form(request, scope_id)
    try:
        _check_percent(form)
        stored = set_watermark(
            actor=actor_of(request),
            scope=scope_id,
            low=_share(form.low),
            high=_share(form.high),
            dwell_s=_number(form.dwell_s),
            if_revision=int(form.revision) if form.revision.isdigit() else None,
            reason=request.POST.get("reason", "").strip()[:500],
        )
    except NotFound as error:
        raise Http404(error.message) from error
    except ControlError as error:
        return _page(request, _with_errors(form, error), status=error.status)
    announce.changed("policy")
    version = rollout().version
    published = f" Published v{version}." if version else " It is published as soon as possible."
    messages.success(request, f"Saved {scope_id}: {meaning(stored)}{published}")
    return HttpResponseRedirect(f"{path_of(scope_id)}?{state_of(request, now=timezone.now()).query()}")


def _page(request: HttpRequest, form: PolicyForm, *, status: int = 200) -> HttpResponse:
    return page(
        request, "policies", "dashboard/policies.html", status=status, form=form, scopes=scopes_without_policy()
    )


def _stored_form(scope_id: str) -> PolicyForm:
    """The stored values, or those of the global policy for a scope without one of its own."""
    stored = find_policy(scope_id)
    shown = stored or find_policy("global") or WatermarkPolicy(scope=WatermarkPolicy.Scope.GLOBAL)
    return PolicyForm(
        scope_id=scope_id,
        low=f"{shown.low * 100:g}",
        high=f"{shown.high * 100:g}",
        dwell_s=f"{shown.dwell_s:g}",
        revision=str(stored.revision if stored else 0),
        meaning=meaning(shown) if stored else f"No policy of its own: the wider one holds. {meaning(shown)}",
    )


def _typed_form(request: HttpRequest, scope_id: str) -> PolicyForm:
    low, high, dwell_s, revision = (
        request.POST.get(name, "").strip()[:NUMBER_TEXT_MAX] for name in ("low", "high", "dwell_s", "revision")
    )
    return PolicyForm(scope_id=scope_id, low=low, high=high, dwell_s=dwell_s, revision=revision)


def _with_errors(form: PolicyForm, error: ControlError) -> PolicyForm:
    by_field: dict[str, list[str]] = {}
    for fault in error.errors or [FieldError(field="", message=error.message)]:
        name = fault["field"] if fault["field"] in ("low", "high", "dwell_s") else "form"
        by_field.setdefault(name, []).append(fault["message"])
    return PolicyForm(
        scope_id=form.scope_id,
        low=form.low,
        high=form.high,
        dwell_s=form.dwell_s,
        revision=form.revision,
        errors=by_field,
        stale=isinstance(error, Stale),
    )


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
    return _number(percent.removesuffix("%")) / 100


def _number(text: str) -> float:
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        return float("nan")
