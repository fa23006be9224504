"""The audit log: searched, read field by field, verified, taken away. A tenant's members see entries about it alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.audit.models import AuditEntry
from controlplane.audit.selectors import Search, changes, entries, head, last_verification
from controlplane.audit.verification import verify_and_note
from controlplane.namespaces.change_log import about
from controlplane.tenants.roles import Capability
from controlplane.webhooks.tasks import check_audit
from dashboard.access import access_of, actor_of, requires, requires_somewhere
from dashboard.live_pages import in_own_tenant
from dashboard.scope import PageState, state_of
from dashboard.tables import disarmed
from dashboard.views.pages import page

PAGE_ROWS = 50
EXPORT_ROWS_MAX = 100_000
CHUNK_ROWS = 500
TEXT_MAX = 200
VERIFIED_AT_ONCE_MAX = 20_000
"""Entries: some seconds. A longer log is verified by a worker process."""
COLUMNS = ("id", "at", "actor", "action", "object_type", "object_id", "before", "after", "reason", "request_id", "hash")
audit_viewer = requires_somewhere(Capability.AUDIT_VIEW)


@audit_viewer
@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    state = _state(request)
    search = _search(request, state)
    rows = _rows(request, search, state)
    before = request.GET.get("before", "")
    if before.isascii() and before.isdigit() and len(before) <= 18:
        rows = rows.filter(id__lt=int(before))
    found = list(rows[: PAGE_ROWS + 1])
    shown = found[:PAGE_ROWS]
    return page(
        request,
        "audit",
        "dashboard/audit.html",
        panels=False,
        rows=[(entry, changes(entry)) for entry in shown],
        older=shown[-1].pk if len(found) > PAGE_ROWS else None,
        is_first=not before,
        search=search,
        tenant=state.tenant,
        extra_query=_extra(request, search),
        by_time=_by_time(request),
        whole=access_of(request).may(Capability.AUDIT_VIEW),
        verification=last_verification(),
        head=head(),
    )


@audit_viewer
@require_safe
def audit_export(request: HttpRequest, form: str) -> StreamingHttpResponse:
    """`csv` or `json`, of what the search finds, newest first."""
    if form not in ("csv", "json"):
        raise Http404("There is no such form.")
    state = _state(request)
    rows = _rows(request, _search(request, state), state)[:EXPORT_ROWS_MAX].iterator(chunk_size=CHUNK_ROWS)
    content, kind = (_csv(rows), "text/csv; charset=utf-8") if form == "csv" else (_json(rows), "application/json")
    headers = {"Content-Disposition": f'attachment; filename="tidemark-audit.{form}"', "Cache-Control": "no-store"}
    return StreamingHttpResponse(content, content_type=kind, headers=headers)


@requires(Capability.AUDIT_VIEW)
@require_POST
def audit_verify(request: HttpRequest) -> HttpResponse:
    newest = head()
    if newest is not None and newest.last_id > VERIFIED_AT_ONCE_MAX:
        check_audit.apply_async(expires=300)
        messages.success(request, f"{newest.last_id:,} entries are being verified; look again in a minute.")
    else:
        row = verify_and_note(by=actor_of(request))
        if row.bad_id is None:
            messages.success(request, f"The log is whole: {row.entries:,} entries, and its end is the one signed.")
        else:
            messages.error(request, f"Entry {row.bad_id}: {row.fault}. {row.entries:,} entries before it are sound.")
    return HttpResponseRedirect(f"{reverse('audit')}?{state_of(request, now=timezone.now()).query()}")


def _state(request: HttpRequest) -> PageState:
    return in_own_tenant(state_of(request, now=timezone.now()), access_of(request), Capability.AUDIT_VIEW)


def _rows(request: HttpRequest, search: Search, state: PageState) -> QuerySet[AuditEntry]:
    visible: Q | None = about([state.tenant]) if state.tenant else None
    return entries(search, visible=visible)


def _by_time(request: HttpRequest) -> bool:
    """The whole log unless a range is asked for: what happened last may be long ago."""
    return bool(request.GET.get("from") or request.GET.get("to"))


def _search(request: HttpRequest, state: PageState) -> Search:
    texts = {name: request.GET.get(name, "").strip()[:TEXT_MAX] for name in ("actor", "action", "object", "request_id")}
    search = Search(texts["actor"], texts["action"], texts["object"], texts["request_id"])
    if not _by_time(request):
        return search
    scope = state.scope(timezone.now())
    return replace(search, since=scope.from_, until=scope.to)


def _extra(request: HttpRequest, search: Search) -> str:
    """What links of the page add to the state: the typed filters, and a range even where it is the default one."""
    names = [field.name for field in fields(search) if field.name not in ("since", "until")]
    pairs = {name: getattr(search, name) for name in names if getattr(search, name)}
    if request.GET.get("from"):
        pairs["from"] = request.GET["from"][:TEXT_MAX]
    return f"&{urlencode(pairs)}" if pairs else ""


def _cells(entry: AuditEntry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in COLUMNS} | {"at": entry.at.isoformat()}


def _csv(rows: Iterator[AuditEntry]) -> Iterator[bytes]:
    yield _line(COLUMNS)
    for entry in rows:
        cells = _cells(entry)
        documents = {name: json.dumps(cells[name], sort_keys=True) for name in ("before", "after") if cells[name]}
        yield _line([str(disarmed(str(value or ""))) for value in (cells | documents).values()])


def _line(cells: tuple[str, ...] | list[str]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue().encode()


def _json(rows: Iterator[AuditEntry]) -> Iterator[bytes]:
    yield b"["
    for number, entry in enumerate(rows):
        yield (b",\n" if number else b"\n") + json.dumps(_cells(entry)).encode()
    yield b"\n]\n"
