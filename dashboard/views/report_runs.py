"""One report: its progress and then its figures, its files, who was told, and links to share it."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from controlplane.errors import ControlError, NotFound
from controlplane.reports import delivering, mail, producing, sharing
from controlplane.reports.models import Format, ReportRun
from controlplane.reports.rendering import as_html, content_security_policy, context_of
from controlplane.reports.selectors import find_run
from controlplane.tenants.roles import Capability
from controlplane.webhooks import delivering as webhooks
from dashboard.access import access_of, actor_of, requires, requires_somewhere
from dashboard.forms import revision_of
from dashboard.reports import steps
from dashboard.scope import state_of
from dashboard.views.pages import page

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "pdf": "application/pdf",
    "csv": "application/zip",
    "json": "application/json",
}
SHOWN_IN_THE_BROWSER = ("html", "pdf")
SHARE_DAYS = ("7", "30", "90")


@requires_somewhere(Capability.REPORTS_VIEW)
@require_safe
def report_run(request: HttpRequest, run_id: int) -> HttpResponse:
    return _run_page(request, _run(request, run_id))


@requires_somewhere(Capability.REPORTS_VIEW)
@require_safe
def report_file(request: HttpRequest, run_id: int, format: str) -> HttpResponse:
    """HTML and PDF open in the browser, the others are saved."""
    run = _run(request, run_id)
    file = run.files.filter(format=format).first()
    if file is None or file.content is None:
        raise Http404("There is no such file.")
    where = "inline" if format in SHOWN_IN_THE_BROWSER else "attachment"
    headers = {
        "Content-Disposition": f'{where}; filename="{mail.file_name(run, format)}"',
        "Cache-Control": "private, no-store",
    }
    if format == Format.HTML:
        headers["Content-Security-Policy"] = content_security_policy()
    return HttpResponse(bytes(file.content), content_type=CONTENT_TYPES[format], headers=headers)


@requires(Capability.REPORTS_CHANGE)
@require_POST
def report_share(request: HttpRequest, run_id: int) -> HttpResponse:
    """The link is in the answer, this once."""
    run = _run(request, run_id)
    days = revision_of(request.POST.get("days", "")) or 0
    try:
        shared = sharing.share(run.pk, actor=actor_of(request), days=days)
    except ControlError as error:
        messages.error(request, error.message)
        return _to(request, run)
    return _run_page(request, run, link=request.build_absolute_uri(shared.path))


@requires(Capability.REPORTS_CHANGE)
@require_POST
def report_step(request: HttpRequest, run_id: int, step: str, subject_id: int) -> HttpResponse:
    """`retry` the run, `unshare` a link, `mail` or `webhook` a delivery again."""
    run = _run(request, run_id)
    actor = actor_of(request)
    try:
        if step == "retry":
            producing.retry(run.pk, actor=actor)
        elif step == "unshare" and run.shares.filter(pk=subject_id).exists():
            sharing.revoke_share(subject_id, actor=actor)
        elif step == "mail" and run.deliveries.filter(pk=subject_id).exists():
            delivering.redeliver(subject_id, actor=actor)
        elif step == "webhook" and any(told.id == subject_id for told in delivering.told_of(run)):
            webhooks.redeliver(subject_id, actor=actor)
        else:
            raise Http404("There is no such step.")
    except ControlError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _DONE[step])
    return _to(request, run)


_DONE = {
    "retry": "It is made afresh.",
    "unshare": "The link shows nothing any more.",
    "mail": "It is sent again within seconds.",
    "webhook": "It is sent again within seconds.",
}


@never_cache
@require_safe
def report_shared(request: HttpRequest, token: str) -> HttpResponse:
    """For whoever has the link: the report alone, no page around it, nothing to click."""
    try:
        run = sharing.open_shared(token)
    except NotFound as error:
        raise Http404(error.message) from error
    headers = {
        "Content-Security-Policy": content_security_policy(),
        "Referrer-Policy": "no-referrer",
        "X-Robots-Tag": "noindex",
    }
    return HttpResponse(as_html(run.figures or {}), headers=headers)


def _run_page(request: HttpRequest, run: ReportRun, *, link: str = "") -> HttpResponse:
    now = timezone.now()
    may_report = access_of(request).may(Capability.REPORTS_CHANGE)
    return page(
        request,
        "reports",
        "dashboard/report_run.html",
        run=run,
        steps=steps(run),
        under_way=run.state in (run.State.QUEUED, run.State.RUNNING),
        files=run.files.defer("content"),
        told=delivering.told_of(run) if may_report else [],
        shares=[(row, row.is_open(now)) for row in run.shares.all()] if may_report else [],
        share_days=SHARE_DAYS,
        link=link,
        may_report=may_report,
        report=context_of(run.figures) if run.figures else None,
    )


def _run(request: HttpRequest, run_id: int) -> ReportRun:
    try:
        return find_run(run_id, access_of(request).tenants(Capability.REPORTS_VIEW))
    except NotFound as error:
        raise Http404(error.message) from error


def _to(request: HttpRequest, run: ReportRun) -> HttpResponse:
    query = state_of(request, now=timezone.now()).query()
    return HttpResponseRedirect(f"{reverse('report-run', args=[run.pk])}?{query}")
