"""Webhooks: who is told of what, every attempt to tell them, and work that was given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Max, Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.deadletters.models import TaskDelivery
from controlplane.deadletters.services import retry
from controlplane.errors import ControlError
from controlplane.tenants.roles import Capability
from controlplane.webhooks import delivering, services
from controlplane.webhooks.events import PATTERNS
from controlplane.webhooks.models import Delivery, Subscription
from dashboard.access import access_of, actor_of, requires
from dashboard.scope import state_of
from dashboard.views.pages import page

PAGE_ROWS = 50
GIVEN_UP_SHOWN = 50
TEXT_MAX = 300
STATES = dict(Delivery.State.choices)


@dataclass(frozen=True, slots=True)
class WebhookForm:
    values: dict[str, str] = field(default_factory=lambda: {"format": "tidemark"})
    events: list[str] = field(default_factory=lambda: ["*"])
    errors: dict[str, list[str]] = field(default_factory=dict)


@requires(Capability.INTEGRATIONS_VIEW)
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def webhooks(request: HttpRequest) -> HttpResponse:
    """POST adds one; the secret of its signatures is in the answer, this once."""
    if request.method != "POST":
        return _page(request, WebhookForm())
    if not access_of(request).may(Capability.INTEGRATIONS_CHANGE):
        return HttpResponse("Your role does not allow this (integrations.change).", status=403)
    values = {name: request.POST.get(name, "").strip()[:TEXT_MAX] for name in ("slug", "url", "format")}
    events = request.POST.getlist("events")[: len(PATTERNS)]
    try:
        made = services.create_subscription(
            actor=actor_of(request), slug=values["slug"], url=values["url"], events=events, format=values["format"]
        )
    except ControlError as error:
        errors: dict[str, list[str]] = {}
        for fault in error.errors or [{"field": "form", "message": error.message}]:
            errors.setdefault(fault["field"] or "form", []).append(fault["message"])
        return _page(request, WebhookForm(values, events, errors), status=error.status)
    return _page(request, WebhookForm(), made=made)


def _page(
    request: HttpRequest, form: WebhookForm, *, made: services.Made | None = None, status: int = 200
) -> HttpResponse:
    slug, state = request.GET.get("webhook", ""), request.GET.get("state", "")
    found = Delivery.objects.select_related("subscription")
    if slug:
        found = found.filter(subscription__slug=slug[:48])
    if state in STATES:
        found = found.filter(state=state)
    pairs = {"webhook": slug[:48], "state": state if state in STATES else ""}
    pairs = {name: value for name, value in pairs.items() if value}
    return page(
        request,
        "webhooks",
        "dashboard/webhooks.html",
        panels=False,
        status=status,
        form=form,
        made=made,
        patterns=PATTERNS,
        formats=Subscription.Format.choices,
        receivers=_receivers(),
        rows=Paginator(found, PAGE_ROWS).get_page(request.GET.get("page")),
        filters=pairs,
        states=Delivery.State.choices,
        extra_query=f"&{urlencode(pairs)}" if pairs else "",
        given_up=TaskDelivery.objects.filter(dead_at__isnull=False)[:GIVEN_UP_SHOWN],
        may_integrate=access_of(request).may(Capability.INTEGRATIONS_CHANGE),
    )


def _receivers() -> list[Subscription]:
    """With what became of their deliveries."""
    return list(
        Subscription.objects.annotate(
            waiting=Count("deliveries", filter=Q(deliveries__state=Delivery.State.PENDING)),
            dead=Count("deliveries", filter=Q(deliveries__state=Delivery.State.DEAD)),
            last_good=Max("deliveries__finished_at", filter=Q(deliveries__state=Delivery.State.DELIVERED)),
        )
    )


@requires(Capability.INTEGRATIONS_CHANGE)
@require_POST
def webhook_step(request: HttpRequest, slug: str, step: str) -> HttpResponse:
    """`test`, `enable`, `disable`; `delete` when its name was typed."""
    if step not in STEPS:
        raise Http404("There is no such step.")

    def act(actor: str) -> str:
        return STEPS[step](request, slug, actor)

    return _told(request, act)


def _test(request: HttpRequest, slug: str, actor: str) -> str:
    row = delivering.send_test(slug, actor=actor)
    if row.state == Delivery.State.DELIVERED:
        return f"{slug} took the test: status {row.last_status}."
    raise ControlError(f"{slug} did not take the test: {row.last_error}")


def _enable(request: HttpRequest, slug: str, actor: str) -> str:
    services.update_subscription(slug, actor=actor, enabled=True)
    return f"{slug} is told of what happens from now on."


def _disable(request: HttpRequest, slug: str, actor: str) -> str:
    services.update_subscription(slug, actor=actor, enabled=False)
    return f"{slug} is told of nothing until it is enabled."


def _delete(request: HttpRequest, slug: str, actor: str) -> str:
    if request.POST.get("typed", "").strip() != slug:
        raise ControlError(f"Nothing was removed: type {slug} to remove it with its deliveries.")
    services.delete_subscription(slug, actor=actor)
    return f"{slug} is removed, with its deliveries."


STEPS: dict[str, Callable[[HttpRequest, str, str], str]] = {
    "test": _test,
    "enable": _enable,
    "disable": _disable,
    "delete": _delete,
}


@requires(Capability.INTEGRATIONS_CHANGE)
@require_POST
def redeliver(request: HttpRequest, delivery_id: int) -> HttpResponse:
    def act(actor: str) -> str:
        row = delivering.redeliver(delivery_id, actor=actor)
        return f"{row.event} goes to {row.subscription.slug} again within seconds."

    return _told(request, act)


@requires(Capability.FLEET_CHANGE)
@require_POST
def begin_anew(request: HttpRequest, letter_id: int) -> HttpResponse:
    """Work that was given up after three deliveries."""

    def act(actor: str) -> str:
        row = retry(letter_id, actor=actor)
        return f"{row.task} {row.subject} begins anew at the next tick that finds it due."

    return _told(request, act)


def _told(request: HttpRequest, act: Callable[[str], str]) -> HttpResponse:
    try:
        messages.success(request, act(actor_of(request)))
    except ControlError as error:
        if error.status == 404:
            raise Http404(error.message) from error
        messages.error(request, error.message)
    return HttpResponseRedirect(f"{reverse('webhooks')}?{state_of(request, now=timezone.now()).query()}")
