"""The form of a pool's or namespace's routing policy: the fields that it sets; the others stay as the settings say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.errors import ControlError, FieldError, NotFound, Stale
from controlplane.fleet.models import WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.policies.models import PolicyRevision, RoutingPolicy
from controlplane.policies.routing_values import FIELDS
from controlplane.policies.rows import find_row
from controlplane.policies.services import clear_policy, rollback_policy, set_routing
from controlplane.rollouts.dry_run import DryRun, dry_run
from controlplane.rollouts.services import start_rollout
from controlplane.tenants.roles import Capability
from dashboard.access import access_of, actor_of, viewer_required
from dashboard.policies import changed_rows, routing_path, scope_exists
from dashboard.policy_steps import MINUTES, chart_of, ends_at, minutes_of, published, reason_of, revision_of
from dashboard.scope import state_of
from dashboard.views.pages import page
from dashboard.what_if_form import query_of
from dashboard.words import label

ROUTING = PolicyRevision.Kind.ROUTING
TEXT_MAX = 40
CHOICES = {
    "routing": [(str(value), str(words)) for value, words in WorkerPool.Routing.choices],
    "shed_over_slo": [("yes", "yes"), ("no", "no")],
}
_BOOLEANS = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    label: str
    value: str
    """As typed; "" = as the settings say."""
    settings: Any
    """What holds without it; any JSON value."""
    choices: list[tuple[str, str]]
    errors: list[str]


@dataclass(frozen=True, slots=True)
class RoutingForm:
    scope_id: str
    action: str
    texts: dict[str, str]
    revision: str
    """Of the stored policy; 0 = none."""
    ends_min: str = ""
    errors: dict[str, list[str]] = field(default_factory=dict)
    stale: bool = False

    @property
    def seen(self) -> int | None:
        return revision_of(self.revision)

    @property
    def values(self) -> dict[str, Any]:
        return {name: _value(name, text) for name, text in self.texts.items()}


@viewer_required
@require_http_methods(["GET", "HEAD", "POST"])
def routing_policy(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    """POST with `how`: publish, rollout, preview, rollback or clear; when nobody changed it since it was shown."""
    scope_id = f"{kind}:{name}"
    if kind not in FIELDS or not scope_exists(scope_id):
        raise Http404("There is no such pool or namespace.")
    if request.method != "POST":
        return _page(request, _stored(scope_id))
    if not access_of(request).may(Capability.POLICIES_CHANGE):
        raise PermissionDenied("Changing a routing policy needs the operator role.")
    form = _typed(request, scope_id)
    try:
        return _step(request, form)
    except NotFound as error:
        raise Http404(error.message) from error
    except ControlError as error:
        return _page(request, _with_errors(form, error), status=error.status)


def _step(request: HttpRequest, form: RoutingForm) -> HttpResponse:
    """Raises ControlError."""
    how, scope = request.POST.get("how", "publish"), form.scope_id
    common: dict[str, Any] = {"actor": actor_of(request), "scope": scope, "if_revision": form.seen,
                              "reason": reason_of(request)}  # fmt: skip
    if how == "preview":
        preview = dry_run(kind=ROUTING, scope=scope, values=form.values, minutes=minutes_of(request))
        return _page(request, form, preview=preview)
    if how == "rollout":
        begun = start_rollout(kind=ROUTING, values=form.values, **common)
        published(request, f"Roll-out {begun.pk} of {scope} began.")
        return HttpResponseRedirect(reverse("rollout", args=[begun.pk]))
    if how == "clear":
        clear_policy(kind=ROUTING, **common)
        told = f"{scope} has no routing policy of its own any more: its settings hold."
    elif how == "rollback":
        done = rollback_policy(kind=ROUTING, to=revision_of(request.POST.get("to", "")), **common)
        told = f"{scope} is as in revision {done.repeats} again (revision {done.number})."
    else:
        set_routing(values=form.values, expires_at=ends_at(form.ends_min), **common)
        told = f"Saved the routing policy of {scope}."
    published(request, told)
    return HttpResponseRedirect(f"{form.action}?{state_of(request, now=timezone.now()).across()}")


def _page(request: HttpRequest, form: RoutingForm, *, status: int = 200, preview: DryRun | None = None) -> HttpResponse:
    return page(
        request,
        "policies",
        "dashboard/policy_routing.html",
        status=status,
        panels=False,
        form=form,
        inputs=_inputs(form),
        preview=preview,
        minutes=MINUTES,
        load_chart=chart_of(preview),
        what_if_query=query_of(preview.scope, preview.scenario) if preview else "",
        history=changed_rows(ROUTING, form.scope_id),
        kind=ROUTING,
    )


def _stored(scope_id: str) -> RoutingForm:
    row = find_row(ROUTING, scope_id)
    values = row.values if isinstance(row, RoutingPolicy) else {}
    texts = {name: _text(values.get(name)) for name in FIELDS[scope_id.partition(":")[0]]}
    return RoutingForm(scope_id, routing_path(scope_id), texts, str(row.revision if row else 0))


def _typed(request: HttpRequest, scope_id: str) -> RoutingForm:
    texts = {name: request.POST.get(name, "").strip()[:TEXT_MAX] for name in FIELDS[scope_id.partition(":")[0]]}
    revision, ends_min = (request.POST.get(name, "").strip()[:TEXT_MAX] for name in ("revision", "ends_min"))
    return RoutingForm(scope_id, routing_path(scope_id), texts, revision, ends_min)


def _with_errors(form: RoutingForm, error: ControlError) -> RoutingForm:
    by_field: dict[str, list[str]] = {}
    for fault in error.errors or [FieldError(field="", message=error.message)]:
        name = {"expires_at": "ends_min"}.get(fault["field"], fault["field"])
        by_field.setdefault(name if name in form.texts or name == "ends_min" else "form", []).append(fault["message"])
    return RoutingForm(
        form.scope_id, form.action, form.texts, form.revision, form.ends_min, by_field, isinstance(error, Stale)
    )


def _inputs(form: RoutingForm) -> list[Input]:
    kind, _, name = form.scope_id.partition(":")
    row = _settings_of(kind, name)
    return [
        Input(each, label(each), text, getattr(row, each, None), CHOICES.get(each, []), form.errors.get(each, []))
        for each, text in form.texts.items()
    ]


def _settings_of(kind: str, name: str) -> object:
    """The pool or namespace itself; None when it went away meanwhile."""
    if kind == "pool":
        return WorkerPool.objects.filter(slug=name).first()
    tenant, _, slug = name.partition("/")
    return CacheNamespace.objects.filter(tenant__slug=tenant, slug=slug).first()


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(name: str, text: str) -> object:
    """What is no number stays text, which the service refuses by the field's name."""
    if not text:
        return None
    if name in CHOICES:
        return _BOOLEANS.get(text, text)
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
