"""Report schedules: the list with what became of them, the form with its next due times, running one now."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.errors import ControlError, NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.reports import services
from controlplane.reports.models import Format, ReportRun, ReportSchedule, Scope
from controlplane.reports.rendering import pdf_missing
from controlplane.reports.selectors import find_schedule, runs_of, schedules_of
from controlplane.tenants.roles import Capability
from controlplane.webhooks.models import Subscription
from dashboard.access import access_of, actor_of, requires, requires_somewhere
from dashboard.forms import Form, revision_of
from dashboard.reports import in_words, preview, stored, typed, values_of
from dashboard.scope import state_of
from dashboard.views.pages import page

PAGE_ROWS = 50
EXAMPLE = {
    "cron": "0 8 * * 1", "scope": Scope.FLEET.value, "range_days": "30", "formats": ",".join(Format.values),
    "currency": "EUR", "enabled": "on",
}  # fmt: skip
ZONES = (
    "UTC", "Europe/London", "Europe/Berlin", "Europe/Helsinki", "America/New_York", "America/Chicago",
    "America/Los_Angeles", "America/Sao_Paulo", "Asia/Kolkata", "Asia/Singapore", "Asia/Shanghai", "Asia/Tokyo",
    "Australia/Sydney",
)  # fmt: skip
"""Offered; any other IANA zone is taken too."""


@requires_somewhere(Capability.REPORTS_VIEW)
@require_safe
def reports(request: HttpRequest) -> HttpResponse:
    """`?schedule=` narrows the history to one."""
    access = access_of(request)
    tenants = access.tenants(Capability.REPORTS_VIEW)
    state = state_of(request, now=timezone.now())
    chosen = revision_of(request.GET.get("schedule", ""))
    runs = runs_of(tenants).filter(**({"schedule": chosen} if chosen else {}))
    rows = list(schedules_of(tenants))
    return page(
        request,
        "reports",
        "dashboard/reports.html",
        schedules=[(row, in_words(row), ZoneInfo(row.time_zone)) for row in rows],
        states=dict(ReportRun.State.choices),
        rows=Paginator(runs, PAGE_ROWS).get_page(state.page_number),
        chosen=next((row for row in rows if row.pk == chosen), None),
        extra_query=f"&schedule={chosen}" if chosen else "",
        may_report=access.may(Capability.REPORTS_CHANGE),
        has_mail=bool(settings.CONFIG.email_url),
    )


@requires(Capability.REPORTS_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def report_add(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        zone = state_of(request, now=timezone.now()).tz
        return _form_page(request, Form(EXAMPLE | {"time_zone": zone}), row=None)
    form = Form(typed(request))
    try:
        row = services.create_schedule(actor=actor_of(request), slug=form.values["slug"], **values_of(form.values))
    except ControlError as error:
        return _form_page(request, form.refused(error), row=None, status=error.status)
    messages.success(request, f"{row.name} is scheduled: {in_words(row)}, {row.time_zone}.")
    return _to_list(request)


@requires(Capability.REPORTS_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def report_edit(request: HttpRequest, schedule_id: int) -> HttpResponse:
    row = _schedule(request, schedule_id)
    if request.method != "POST":
        return _form_page(request, Form(stored(row)), row=row)
    form = Form(typed(request) | {"slug": row.slug})
    try:
        row = services.update_schedule(
            row.pk, actor=actor_of(request), if_revision=revision_of(form.values["revision"]), **values_of(form.values)
        )
    except ControlError as error:
        return _form_page(request, form.refused(error), row=row, status=error.status)
    messages.success(request, f"{row.name} is saved.")
    return _to_list(request)


@requires(Capability.REPORTS_CHANGE)
@require_http_methods(["GET", "HEAD", "POST"])
def report_delete(request: HttpRequest, schedule_id: int) -> HttpResponse:
    """GET says what goes with it and asks for its id; POST removes it."""
    row = _schedule(request, schedule_id)
    error = ""
    if request.method == "POST":
        if request.POST.get("typed", "").strip() == row.slug:
            services.delete_schedule(row.pk, actor=actor_of(request))
            messages.success(request, f"{row.name} and its reports are removed.")
            return _to_list(request)
        error = "This is not its id."
    return page(
        request, "reports", "dashboard/report_delete.html", status=422 if error else 200, row=row,
        runs=row.runs.count(), error=error,
    )  # fmt: skip


@requires(Capability.REPORTS_CHANGE)
@require_POST
def report_run_now(request: HttpRequest, schedule_id: int) -> HttpResponse:
    row = _schedule(request, schedule_id)
    try:
        run = services.run_now(row.pk, actor=actor_of(request))
    except ControlError as error:
        messages.error(request, error.message)
        return _to_list(request)
    query = state_of(request, now=timezone.now()).query()
    return HttpResponseRedirect(f"{reverse('report-run', args=[run.pk])}?{query}")


@requires(Capability.REPORTS_CHANGE)
@require_safe
def report_preview(request: HttpRequest) -> HttpResponse:
    """The next due times of what is typed, as a fragment."""
    expression, zone = request.GET.get("cron", "")[:100], request.GET.get("time_zone", "")[:50] or "UTC"
    return render(
        request, "dashboard/_fragments/cron_preview.html", {"preview": preview(expression, zone, now=timezone.now())}
    )


def _form_page(request: HttpRequest, form: Form, *, row: ReportSchedule | None, status: int = 200) -> HttpResponse:
    zone = form.values.get("time_zone") or "UTC"
    return page(
        request,
        "reports",
        "dashboard/report_form.html",
        status=status,
        form=form,
        row=row,
        preview=preview(form.values.get("cron", ""), zone, now=timezone.now()),
        scopes=Scope.choices,
        formats=[(name, label, name in form.values.get("formats", "")) for name, label in Format.choices],
        zones=ZONES,
        pools=list(WorkerPool.objects.values_list("slug", flat=True)),
        webhooks=list(Subscription.objects.values_list("slug", flat=True)),
        no_pdf=pdf_missing(),
        has_mail=bool(settings.CONFIG.email_url),
    )


def _schedule(request: HttpRequest, schedule_id: int) -> ReportSchedule:
    try:
        return find_schedule(schedule_id, access_of(request).tenants(Capability.REPORTS_VIEW))
    except NotFound as error:
        raise Http404(error.message) from error


def _to_list(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect(f"/reports/?{state_of(request, now=timezone.now()).query()}")
