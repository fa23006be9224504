"""Workers: the state table, one worker, changes of state with their cost, adding one by URL with a live test."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.errors import ControlError, Invalid, NotFound
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.fleet.selectors import WorkerRow, worker_row, workers_table
from controlplane.fleet.services import add_worker, set_worker_state, test_worker
from dashboard import announce, numbers
from dashboard.access import actor_of, change_required, viewer_required
from dashboard.views.pages import page

WORKER_FIELDS = ("pool", "slug", "url", "kv_events_endpoint", "kv_replay_endpoint", "dcgm_url")
FIELD_TEXT_MAX = 300

ACTIONS = {
    "drain": ("Drain {}", "finishes what it has and takes nothing more"),
    "maintenance": ("Put {} into maintenance", "takes nothing; requests still running there go on"),
    "ready": ("Make {} ready", "takes requests again"),
}


@dataclass(frozen=True, slots=True)
class WorkerForm:
    values: dict[str, str] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)


@viewer_required
@require_safe
def workers(request: HttpRequest) -> HttpResponse:
    return page(request, "workers", "dashboard/workers.html")


@viewer_required
@require_safe
def worker(request: HttpRequest, worker_id: str) -> HttpResponse:
    row = _row(worker_id)
    stored = Worker.objects.select_related("pool").get(pk=row.pk)
    actions = [(state, words.format(row.slug)) for state, (words, _) in ACTIONS.items() if state != row.state]
    return page(
        request, "workers", "dashboard/worker.html", panels=False, row=row, stored=stored, actions=actions,
        facts=sorted(row.facts.items()),
    )  # fmt: skip


@change_required
@require_http_methods(["GET", "HEAD", "POST"])
def worker_state(request: HttpRequest, worker_id: str, state: str) -> HttpResponse:
    """GET states what the change costs and asks; POST does it."""
    if state not in ACTIONS:
        raise Http404("There is no such state.")
    row = _row(worker_id)
    words, effect = ACTIONS[state][0].format(worker_id), ACTIONS[state][1]
    if request.method != "POST":
        return page(
            request, "workers", "dashboard/confirm_state.html", panels=False, row=row, target=state, words=words,
            effect=effect, cost=_cost(row, state),
        )  # fmt: skip
    try:
        set_worker_state(
            worker_id, actor=actor_of(request), state=state, reason=request.POST.get("reason", "").strip()[:500]
        )
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("fleet")
        messages.success(request, f"{worker_id} {effect}.")
    return HttpResponseRedirect("/workers/")


def _cost(row: WorkerRow, state: str) -> str:
    """What leaving the ready state costs, in one sentence; unknown is said, not guessed."""
    if state == "ready":
        return "Its cache may be cold: hits come back as prefixes are computed there."
    rows = workers_table()
    running = [other.running for other in rows if other.running is not None]
    total = sum(running)
    words = [
        "an unknown number of requests running"
        if row.running is None
        else f"{numbers.count(row.running)} requests running ({numbers.percent(row.running / total)} of the fleet's)"
        if total
        else "no request running",
        f"{numbers.count(row.resident_blocks)} cached blocks that others must compute again"
        if row.resident_blocks is not None
        else "an unknown number of cached blocks",
    ]
    left = sum(other.state == "ready" and other.health == "ok" for other in rows if other.worker_id != row.worker_id)
    return f"It has {' and '.join(words)}. {left} other ready {'worker remains' if left == 1 else 'workers remain'}."


@change_required
@require_http_methods(["GET", "HEAD", "POST"])
def worker_add(request: HttpRequest) -> HttpResponse:
    """The form; POST adds the worker, then shows its live test on its page."""
    if request.method != "POST":
        return _add_page(request, WorkerForm())
    values = {name: request.POST.get(name, "").strip()[:FIELD_TEXT_MAX] for name in WORKER_FIELDS}
    try:
        stored = add_worker(actor=actor_of(request), **values)
    except ControlError as error:
        return _add_page(request, WorkerForm(values, _by_field(error)), status=error.status)
    _run_test(request, stored.worker_id)
    announce.changed("fleet")
    return HttpResponseRedirect(f"/workers/{stored.worker_id}/")


@change_required
@require_POST
def worker_test(request: HttpRequest, worker_id: str) -> HttpResponse:
    _run_test(request, worker_id)
    return HttpResponseRedirect(f"/workers/{worker_id}/")


def _run_test(request: HttpRequest, worker_id: str) -> None:
    try:
        report = test_worker(worker_id, actor=actor_of(request))
    except NotFound as error:
        raise Http404(error.message) from error
    except ControlError as error:
        messages.error(request, error.message)
        return
    failed = sum(check.ok is False for check in report.checks)
    if failed:
        messages.warning(request, f"{worker_id}: {failed} of {len(report.checks)} checks failed; see below what to do.")
    else:
        messages.success(request, f"{worker_id}: no check failed.")


def _add_page(request: HttpRequest, form: WorkerForm, *, status: int = 200) -> HttpResponse:
    pools = list(WorkerPool.objects.values_list("slug", flat=True))
    return page(
        request, "workers", "dashboard/worker_add.html", status=status, panels=False, form=form, pools=pools
    )  # fmt: skip


def _by_field(error: ControlError) -> dict[str, list[str]]:
    by_field: dict[str, list[str]] = {}
    for fault in error.errors or Invalid.field("form", error.message).errors:
        name = fault["field"] if fault["field"] in WORKER_FIELDS else "form"
        by_field.setdefault(name, []).append(fault["message"])
    return by_field


def _row(worker_id: str) -> WorkerRow:
    row = worker_row(worker_id, now=timezone.now())
    if row is None:
        raise Http404("There is no such worker.")
    return row
