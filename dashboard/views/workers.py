"""Workers: the state table, one worker, what its leaving costs, adding one by URL with a live test."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.errors import ControlError, Invalid, NotFound
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.fleet.selectors import WorkerRow, workers_table
from controlplane.fleet.services import add_worker, delete_worker, set_worker_state, test_worker
from controlplane.telemetry.calibration import learnt_rates
from controlplane.telemetry.leaving import leaving
from controlplane.telemetry.removal import ranking, rate_without, serves
from dashboard import announce, numbers
from dashboard.access import actor_of, change_required, viewer_required
from dashboard.panels.workers import KINDS
from dashboard.views.pages import page

WORKER_FIELDS = ("pool", "slug", "url", "kv_events_endpoint", "kv_replay_endpoint", "dcgm_url")
FIELD_TEXT_MAX = 300
RANKING_ROWS = 50

ACTIONS = {
    "drain": ("Drain {}", "finishes what it has and takes nothing more"),
    "maintenance": ("Put {} into maintenance", "takes nothing; requests still running there go on"),
    "ready": ("Make {} ready", "takes requests again"),
}
REMOVE = ("Remove {}", "is forgotten: routers send it nothing more, and its polls, events and findings end")


@dataclass(frozen=True, slots=True)
class WorkerForm:
    values: dict[str, str] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)


@viewer_required
@require_safe
def workers(request: HttpRequest) -> HttpResponse:
    kinds = [(key, words) for key, (words, _) in KINDS.items()]
    return page(request, "workers", "dashboard/workers.html", kinds=kinds)


@viewer_required
@require_safe
def removal(request: HttpRequest) -> HttpResponse:
    """Workers of one pool, least is lost first; `?pool=`, else the first that has any."""
    now = timezone.now()
    rows = workers_table(now=now)
    pools = sorted({row.pool for row in rows})
    pool = request.GET.get("pool", "") or next(iter(pools), "")
    ranked = ranking(pool, rows, now=now) if pool in pools else []
    shown = Paginator(ranked, RANKING_ROWS).get_page(request.GET.get("page"))
    return page(
        request, "workers", "dashboard/worker_removal.html", panels=False, rows=shown, pool=pool, pools=pools
    )  # fmt: skip


@viewer_required
@require_safe
def worker(request: HttpRequest, worker_id: str) -> HttpResponse:
    row = _row(worker_id, workers_table())
    stored = Worker.objects.get(pk=row.pk)
    actions = [(state, words.format(row.slug)) for state, (words, _) in ACTIONS.items() if state != row.state]
    return page(
        request, "worker", "dashboard/worker.html", active="workers", item=worker_id, row=row, stored=stored,
        actions=actions,
    )  # fmt: skip


@change_required
@require_http_methods(["GET", "HEAD", "POST"])
def worker_state(request: HttpRequest, worker_id: str, state: str) -> HttpResponse:
    """GET states what the change costs and asks; POST does it."""
    if state not in ACTIONS:
        raise Http404("There is no such state.")
    if request.method != "POST":
        return _ask(request, worker_id, *ACTIONS[state], leaves=state != "ready")
    try:
        set_worker_state(
            worker_id, actor=actor_of(request), state=state, reason=request.POST.get("reason", "").strip()[:500]
        )
    except NotFound as error:
        raise Http404(error.message) from error
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("fleet")
        messages.success(request, f"{worker_id} {ACTIONS[state][1]}.")
    return HttpResponseRedirect("/workers/" if state == "ready" else f"/workers/{worker_id}/")


@change_required
@require_http_methods(["GET", "HEAD", "POST"])
def worker_remove(request: HttpRequest, worker_id: str) -> HttpResponse:
    """What cannot be undone: its name is typed."""
    if request.method != "POST":
        return _ask(request, worker_id, *REMOVE, leaves=True, typed=worker_id)
    if request.POST.get("typed", "").strip() != worker_id:
        errors = [f"Type {worker_id} to confirm; nothing was changed."]
        return _ask(request, worker_id, *REMOVE, leaves=True, typed=worker_id, errors=errors, status=422)
    try:
        delete_worker(worker_id, actor=actor_of(request), reason=request.POST.get("reason", "").strip()[:500])
    except NotFound as error:
        raise Http404(error.message) from error
    except ControlError as error:
        messages.error(request, error.message)
        return HttpResponseRedirect(f"/workers/{worker_id}/")
    announce.changed("fleet")
    messages.success(request, f"{worker_id} is removed.")
    return HttpResponseRedirect("/workers/")


def _ask(
    request: HttpRequest,
    worker_id: str,
    words: str,
    effect: str,
    *,
    leaves: bool,
    typed: str = "",
    errors: list[str] | None = None,
    status: int = 200,
) -> HttpResponse:
    now = timezone.now()
    rows = workers_table(now=now)
    row = _row(worker_id, rows)
    rate = rate_without(worker_id, [each for each in rows if each.pool == row.pool], learnt_rates(now=now))
    return page(
        request, "workers", "dashboard/confirm_state.html", status=status, panels=False, row=row,
        words=words.format(row.slug), effect=effect, cost=_cost(row, rows, leaves=leaves, cut_off=bool(typed)),
        typed=typed, errors=errors or [], rate=rate,
        leaving=leaving(worker_id, rate=rate, now=now) if leaves and row.state == "ready" else None,
    )  # fmt: skip


def _cost(row: WorkerRow, rows: list[WorkerRow], *, leaves: bool, cut_off: bool) -> str:
    """What it costs the fleet, in some sentences; unknown is said, not guessed."""
    if not leaves:
        return "Its cache may be cold: hits come back as prefixes are computed there."
    total = sum(other.running for other in rows if other.running is not None)
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
    left = sum(serves(other) for other in rows if other.pool == row.pool and other.worker_id != row.worker_id)
    told = f"It has {' and '.join(words)}. {left} other ready {'worker remains' if left == 1 else 'workers remain'}."
    if left == 0 and serves(row):
        told += f" Without it requests for the models of {row.pool} are refused."
    if cut_off and row.running != 0:
        told += " Whoever stops its server cuts off what still runs there: drain it first."
    return told


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


def _row(worker_id: str, rows: list[WorkerRow]) -> WorkerRow:
    row = next((row for row in rows if row.worker_id == worker_id), None)
    if row is None:
        raise Http404("There is no such worker.")
    return row
