"""Alerts: what goes on and what was, acknowledging and silencing; rules with their editor and preview."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.alerts import services
from controlplane.alerts.measures import CHOICES, MEASURES
from controlplane.alerts.models import Alert, AlertRule, Severity
from controlplane.alerts.preview import Preview, preview
from controlplane.alerts.selectors import alerts_of, lasting, rules_of, silences_of
from controlplane.errors import ControlError, Stale
from controlplane.fleet.models import WorkerPool
from controlplane.tenants.roles import Capability
from dashboard import announce
from dashboard.access import access_of, actor_of, requires, requires_somewhere
from dashboard.alert_form import RuleForm, faults, form_of, rule_values, typed
from dashboard.alerts import Line, RuleLine, condition, measured, place_of, scope_words
from dashboard.charts.alerts import figure_text, preview_figure
from dashboard.live_pages import in_own_tenant
from dashboard.scope import PageState, state_of
from dashboard.views.pages import page

PAGE_ROWS = 50
SILENCES_SHOWN = 50
HISTORY_SHOWN = 20
SPANS = {"1h": ("1 h", timedelta(hours=1)), "8h": ("8 h", timedelta(hours=8)), "3d": ("3 d", timedelta(days=3))}
"""For which a click silences."""
NEW = {
    "measure": "ttft_p95_ms", "comparison": "above", "threshold": "", "clear_at": "", "window_min": "5", "for_min": "5",
    "on_unknown": "show", "severity": "warning", "enabled": "on",
}  # fmt: skip
alerts_viewer = requires_somewhere(Capability.ALERTS_VIEW)


@alerts_viewer
@require_safe
def alerts(request: HttpRequest) -> HttpResponse:
    state = _state(request)
    now = timezone.now()
    tenants = [state.tenant] if state.tenant else None
    shows_history = state.only == "history"
    past = alerts_of(tenants).filter(resolved_at__isnull=False)
    if state.q:
        past = past.filter(name__icontains=state.q) | past.filter(subject__icontains=state.q)
    rows = Paginator(past, PAGE_ROWS).get_page(state.page_number) if shows_history else None
    return page(
        request,
        "alerts",
        "dashboard/alerts.html",
        rows=rows,
        lines=[Line(alert) for alert in rows] if rows else [],
        extra_query="&only=history" if shows_history else "",
        shows_history=shows_history,
        tabs=_tabs(state),
        silences=lasting(silences_of(tenants), now)[:SILENCES_SHOWN],
        spans=SPANS,
        may_alert=_may_change(request),
    )


def _tabs(state: PageState) -> list[dict[str, object]]:
    words = {"": "Open", "firing": "Firing", "pending": "Pending", "silenced": "Silenced", "unknown": "Unknown",
             "history": "History"}  # fmt: skip
    return [
        {"label": label, "on": state.only == only, "query": state.query(only=only, page="")}
        for only, label in words.items()
    ]


@alerts_viewer
@require_safe
def alert(request: HttpRequest, alert_id: int) -> HttpResponse:
    """One alert: what it says, what to do, what became of it."""
    row = alerts_of(access_of(request).tenants(Capability.ALERTS_VIEW)).filter(pk=alert_id).first()
    if row is None:
        raise Http404("There is no such alert.")
    path, words = place_of(row)
    return page(
        request,
        "alerts",
        "dashboard/alert.html",
        panels=False,
        line=Line(row),
        rule=row.rule,
        condition=condition(row.rule) if row.rule else "",
        measure=MEASURES[row.measure],
        transitions=[(each, measured(row.measure, each.value)) for each in row.transitions.all()[:HISTORY_SHOWN]],
        place_path=path,
        place_words=words,
        spans=SPANS,
        may_alert=_may_change(request),
    )


@requires(Capability.ALERTS_CHANGE)
@require_POST
def alert_act(request: HttpRequest) -> HttpResponse:
    """A button of a row: `acknowledge` names the alert, `silence` the alert and the span."""
    reason = request.POST.get("reason", "")

    def act(actor: str) -> str:
        if "silence" in request.POST:
            return _silence(request.POST["silence"], actor=actor, reason=reason)
        row = services.acknowledge_alert(_id(request.POST.get("acknowledge", "")), actor=actor, reason=reason)
        return f"{row.name} of {row.subject} is in your hands."

    return _told(request, act, _back(request))


def _silence(target: str, *, actor: str, reason: str) -> str:
    alert_id, _, span = target.partition(":")
    row = Alert.objects.filter(pk=_id(alert_id)).first()
    if row is None or span not in SPANS:
        raise Http404("There is no such alert.")
    words, length = SPANS[span]
    services.create_silence(
        actor=actor, rule_slug=row.rule_slug, subject=row.subject, ends_at=timezone.now() + length,
        reason=reason or "Silenced on the alerts page.",
    )  # fmt: skip
    return f"{row.name} of {row.subject} is silenced for {words}, from the next evaluation on."


@requires(Capability.ALERTS_CHANGE)
@require_POST
def silence_create(request: HttpRequest) -> HttpResponse:
    """Of everything that fits: a pool under maintenance, a rule that is being mended."""
    given = {name: request.POST.get(name, "").strip()[:200] for name in ("rule", "subject", "tenant", "pool")}
    span = SPANS.get(request.POST.get("span", ""), SPANS["1h"])

    def act(actor: str) -> str:
        row = services.create_silence(
            actor=actor, rule_slug=given["rule"], subject=given["subject"], tenant=given["tenant"], pool=given["pool"],
            ends_at=timezone.now() + span[1], reason=request.POST.get("reason", ""),
        )  # fmt: skip
        return f"Silence {row.pk} holds for {span[0]}."

    return _told(request, act, _back(request))


@requires(Capability.ALERTS_CHANGE)
@require_POST
def silence_end(request: HttpRequest, silence_id: int) -> HttpResponse:
    def act(actor: str) -> str:
        services.end_silence(silence_id, actor=actor)
        return "The silence is over: what still fires is told at the next evaluation."

    return _told(request, act, _back(request))


@alerts_viewer
@require_http_methods(["GET", "HEAD", "POST"])
def rule(request: HttpRequest, slug: str) -> HttpResponse:
    """The editor. POST `how`: `preview` shows what the typed rule would have done, `save`, `delete`."""
    row = rules_of(access_of(request).tenants(Capability.ALERTS_VIEW)).filter(slug=slug).first()
    if row is None:
        raise Http404("There is no such rule.")
    if request.method != "POST":
        return _rule_page(request, form_of(row), row=row)
    return _post(request, row)


@requires(Capability.ALERTS_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def rule_add(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _rule_page(request, RuleForm(dict(NEW)))
    return _post(request, None)


def _post(request: HttpRequest, row: AlertRule | None) -> HttpResponse:
    given, how = typed(request.POST), request.POST.get("how", "preview")
    if how != "preview" and not _may_change(request):
        return HttpResponse("Your role does not allow this (alerts.change).", status=403)
    try:
        if how == "delete" and row is not None:
            services.delete_rule(row.slug, actor=actor_of(request), if_revision=_revision(given))
            return _gone(request, f"The rule {row.slug} is removed; its past alerts stay in the history.")
        values = rule_values(given)
        if how == "preview":
            draft = services.checked_rule(row.slug if row else given["slug"], values)
            found = preview(draft, now=timezone.now())
            return _rule_page(request, RuleForm(given), row=row, found=found, draft=draft)
        if row is None:
            services.create_rule(actor=actor_of(request), slug=given["slug"], **values)
        else:
            services.update_rule(row.slug, actor=actor_of(request), if_revision=_revision(given), **values)
    except ControlError as error:
        form = RuleForm(given, faults(error), stale=isinstance(error, Stale))
        return _rule_page(request, form, row=row, status=error.status)
    return _gone(request, f"The rule {given['slug'] or (row.slug if row else '')} holds from the next evaluation on.")


def _gone(request: HttpRequest, words: str) -> HttpResponse:
    announce.changed("alerts")
    messages.success(request, words)
    return HttpResponseRedirect(f"{reverse('alerts')}?{_query(request)}")


def _rule_page(
    request: HttpRequest,
    form: RuleForm,
    *,
    row: AlertRule | None = None,
    found: Preview | None = None,
    draft: AlertRule | None = None,
    status: int = 200,
) -> HttpResponse:
    past = Alert.objects.filter(rule=row).select_related("rule")[:HISTORY_SHOWN] if row else []
    return page(
        request,
        "alerts",
        "dashboard/alert_rule.html",
        status=status,
        panels=False,
        form=form,
        row=row,
        line=RuleLine(row) if row else None,
        past=[Line(each) for each in past],
        **_choices(),
        measure=MEASURES.get(form.values.get("measure", "")),
        found=found,
        fired_words=_fired_words(found) if found else "",
        episodes=[(each, measured(draft.measure, each.worst)) for each in found.episodes] if found and draft else [],
        figure=figure_text(preview_figure(found, draft, state_of(request, now=timezone.now()).zone))
        if found and found.values and draft
        else "",
        draft_words=f"{scope_words(draft)}: {condition(draft)}" if draft else "",
        may_alert=_may_change(request),
    )


def _choices() -> dict[str, Any]:
    pools = [(slug, slug) for slug in WorkerPool.objects.values_list("slug", flat=True)]
    return {
        "measure_choices": CHOICES,
        "severities": Severity.choices,
        "comparisons": AlertRule.Comparison.choices,
        "unknowns": AlertRule.OnUnknown.choices,
        "pool_choices": [("", "all"), *pools],
    }


def _fired_words(found: Preview) -> str:
    if found.reason:
        return found.reason
    times = "not have fired" if not found.fired else f"have fired {found.fired} time{'s' if found.fired != 1 else ''}"
    return f"In the last 24 h it would {times}."


def _state(request: HttpRequest) -> PageState:
    return in_own_tenant(state_of(request, now=timezone.now()), access_of(request), Capability.ALERTS_VIEW)


def _may_change(request: HttpRequest) -> bool:
    return access_of(request).may(Capability.ALERTS_CHANGE)


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Http404("There is no such alert.")
    return int(text)


def _revision(given: dict[str, str]) -> int | None:
    text = given["revision"]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _query(request: HttpRequest) -> str:
    return state_of(request, now=timezone.now()).query()


def _back(request: HttpRequest) -> str:
    """To the alert's own page when the button was there."""
    own = request.POST.get("from", "")
    path = reverse("alert", args=[_id(own)]) if own else reverse("alerts")
    return f"{path}?{_query(request)}"


def _told(request: HttpRequest, act: Callable[[str], str], back: str) -> HttpResponse:
    try:
        words = act(actor_of(request))
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("alerts")
        messages.success(request, words)
    return HttpResponseRedirect(back)
