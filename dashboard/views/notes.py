"""Notes on a range of time: the list with its form, writing one from a chart or from the form, deleting one."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.errors import ControlError, Invalid
from controlplane.tenants.roles import Capability
from controlplane.workspace.models import RangeNote
from controlplane.workspace.notes import add_note, delete_note
from dashboard import fragments
from dashboard.access import access_of, actor_of, change_required, requires
from dashboard.forms import Form, posted
from dashboard.scope import PageState, moment_of, state_of
from dashboard.secrets import without_secrets
from dashboard.views.pages import page

PAGE_ROWS = 50
FIELDS = ("begins_at", "ends_at", "text", "tenant")
LOCAL = "%Y-%m-%dT%H:%M:%S"


@dataclass(frozen=True, slots=True)
class Row:
    note: RangeNote
    charts_query: str
    """Leads to the charts of its range, with as much again to either side."""


@requires(Capability.FLEET_VIEW)
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def notes(request: HttpRequest) -> HttpResponse:
    """POST writes one and leads back to the page of this dashboard that `back` names."""
    state = state_of(request, now=timezone.now())
    if request.method != "POST":
        return _page(request, state, Form(_offered(state)))
    if not access_of(request).may(Capability.FLEET_CHANGE):
        raise PermissionDenied("Your role does not allow this. Ask an operator.")
    form = Form(posted(request, FIELDS))
    try:
        _add(request, state, form)
    except ControlError as error:
        return _page(request, state, form.refused(error), status=error.status)
    fragments.forget()
    messages.success(request, "The note stands on the charts of its range.")
    return HttpResponseRedirect(_back(request) or f"{reverse('notes')}?{state.across()}")


@change_required
@require_POST
def note_delete(request: HttpRequest, note_id: int) -> HttpResponse:
    try:
        note = delete_note(actor=actor_of(request), note_id=note_id)
    except ControlError as error:
        messages.error(request, error.message)
    else:
        fragments.forget()
        messages.success(request, f"The note “{note.text}” is deleted; the audit log keeps it.")
    return HttpResponseRedirect(f"{reverse('notes')}?{state_of(request, now=timezone.now()).across()}")


def _add(request: HttpRequest, state: PageState, form: Form) -> None:
    ends = {name: moment_of(form.values[name], state.zone) for name in ("begins_at", "ends_at")}
    for name, at in ends.items():
        if at is None:
            raise Invalid.field(name, "This is not a time.")
    begins_at, ends_at = ends["begins_at"], ends["ends_at"]
    assert begins_at and ends_at
    add_note(
        actor=actor_of(request), begins_at=begins_at, ends_at=ends_at, text=without_secrets(form.values["text"]),
        tenant=form.values["tenant"],
    )  # fmt: skip


def _back(request: HttpRequest) -> str:
    """An address of this site, or ""."""
    back = request.POST.get("back", "")
    safe = back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    return back if safe else ""


def _offered(state: PageState) -> dict[str, str]:
    """The shown range and tenant."""
    scope = state.scope(timezone.now())
    ends = [at.astimezone(state.zone).strftime(LOCAL) for at in (scope.from_, scope.to)]
    return {"begins_at": ends[0], "ends_at": ends[1], "text": "", "tenant": state.tenant}


def _page(request: HttpRequest, state: PageState, form: Form, *, status: int = 200) -> HttpResponse:
    found = RangeNote.objects.all()
    if state.tenant:
        found = found.filter(tenant=state.tenant)
    rows = Paginator(found, PAGE_ROWS).get_page(state.page_number)
    noted = [Row(note, _around(note, state)) for note in rows.object_list]
    return page(
        request, "notes", "dashboard/notes.html", panels=False, status=status, rows=rows, noted=noted,
        form=form,
        paging_query=state.query(page=""),
    )  # fmt: skip


def _around(note: RangeNote, state: PageState) -> str:
    margin = note.ends_at - note.begins_at
    ends = {"from": note.begins_at - margin, "to": min(note.ends_at + margin, timezone.now())}
    query = {name: at.strftime("%Y-%m-%dT%H:%M:%SZ") for name, at in ends.items()}
    return urlencode(query | ({"tenant": note.tenant} if note.tenant else {}) | {"tz": state.tz})
