"""The onboarding wizard: tenant, namespace and isolation, limits and policy, review, and the key, shown this once.

No step keeps anything on the server: what was typed travels in the form, and each step tries all of it (dry run).
"""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.errors import ControlError
from controlplane.fleet.models import PoolModel
from controlplane.namespaces.models import CacheNamespace
from controlplane.onboarding.services import NEEDED, Onboarded, onboard_tenant
from controlplane.policies.models import WatermarkPolicy
from controlplane.tenants.roles import Capability
from dashboard import announce
from dashboard.access import access_of, actor_of, requires
from dashboard.forms import Form, posted
from dashboard.namespace_form import choices
from dashboard.onboarding_form import DEFAULTS, EXPIRIES, FIELDS, STEPS, TITLES, arguments, refused, step_of
from dashboard.router_address import router_address
from dashboard.views.keys import example_model
from dashboard.views.pages import page

ORDER = tuple(STEPS)


@requires(Capability.TENANTS_CHANGE)
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def onboard(request: HttpRequest) -> HttpResponse:
    _check_allowed(request)
    if request.method != "POST":
        return _step_page(request, ORDER[0], Form(dict.fromkeys(FIELDS, "") | {"model_names": ""} | DEFAULTS))
    step = request.POST.get("step", "")
    at = ORDER.index(step) if step in ORDER else 0
    models = "\n".join(request.POST.getlist("model_names"))
    form = Form(posted(request, FIELDS) | {"model_names": models})
    if request.POST.get("go") == "back":
        return _step_page(request, ORDER[max(0, at - 1)], form)
    return _forward(request, at, form)


def _check_allowed(request: HttpRequest) -> None:
    missing = [capability for capability in NEEDED if not access_of(request).may(capability)]
    if missing:
        raise PermissionDenied(f"Your role does not allow this ({', '.join(missing)}). Ask an administrator.")


def _forward(request: HttpRequest, at: int, form: Form) -> HttpResponse:
    """The next step, or this one with what is wrong; from the last one it is done."""
    last = at == len(ORDER) - 1
    try:
        if form.values["isolation"] not in ("", "private") and not _may_share(request):
            raise PermissionDenied("Your role does not allow this (sharing.change). Ask an administrator.")
        done = onboard_tenant(actor=actor_of(request), dry_run=not last, **arguments(form.values))
    except ControlError as error:
        wrong = refused(form, error)
        faulty = step_of(wrong)
        if ORDER.index(faulty) <= at:
            return _step_page(request, faulty, wrong, status=error.status)
        return _step_page(request, ORDER[at + 1], form)
    if not last:
        return _step_page(request, ORDER[at + 1], form)
    announce.changed("tenants")
    return _done_page(request, done)


def _may_share(request: HttpRequest) -> bool:
    return access_of(request).may(Capability.SHARING_CHANGE)


def _step_page(request: HttpRequest, step: str, form: Form, *, status: int = 200) -> HttpResponse:
    chosen = [name for name in form.values["model_names"].split("\n") if name]
    served = list(PoolModel.objects.order_by("name").values_list("name", flat=True))
    at = ORDER.index(step)
    return page(
        request,
        "onboard",
        "dashboard/onboard.html",
        active="tenants",
        status=status,
        step=step,
        steps=[(name, TITLES[name], index < at, index == at) for index, name in enumerate(ORDER)],
        form=form,
        carried=[(name, form.values[name]) for name in FIELDS if name not in STEPS[step]],
        carried_models=[] if step == "namespace" else chosen,
        models=[(name, name in chosen) for name in sorted({*served, *chosen})],
        chosen=chosen,
        isolations=CacheNamespace.Isolation.choices if _may_share(request) else [("private", "Private")],
        isolation_words=dict(CacheNamespace.Isolation.choices).get(form.values["isolation"], "Private"),
        widest=WatermarkPolicy.objects.filter(scope="global").first() if step in ("limits", "review") else None,
        expiries=EXPIRIES.items(),
        **choices(),
    )


def _done_page(request: HttpRequest, done: Onboarded) -> HttpResponse:
    """The one answer that holds the key; its panel goes on until the first hit."""
    return page(
        request,
        "onboarding",
        "dashboard/onboarded.html",
        active="tenants",
        item=done.namespace.namespace_id,
        done=done,
        namespace=done.namespace,
        issued=done.issued,
        router_url=router_address(request),
        model=example_model(done.namespace),
        made_at=timezone.now(),
    )
