"""Prompt templates: versions, what lints find in one, where it parts from the one before, and its publication."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.errors import ControlError, Invalid, NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.prompts.divergence import compare_versions
from controlplane.prompts.lints import report_on
from controlplane.prompts.models import PromptTemplateVersion
from controlplane.prompts.rendering import assembled
from controlplane.prompts.selectors import counter_of_pool, find_version, templates_of, with_versions
from controlplane.prompts.services import publish_version, retire_version
from controlplane.telemetry.template_use import template_use
from controlplane.tenants.roles import Capability
from dashboard import announce
from dashboard.access import access_of, actor_of, requires_somewhere
from dashboard.scope import state_of
from dashboard.views.pages import page

PAGE_ROWS = 50
POOLS_MAX = 200
PREVIEW_CHARS_MAX = 20_000
KINDS = (("published", "with a published version"), ("draft", "with a draft"), ("none", "never published"))
CODES_MAX = 20


@requires_somewhere(Capability.TEMPLATES_VIEW)
@require_safe
def templates(request: HttpRequest) -> HttpResponse:
    """Filtered by `?tenant=`, `?q=` and `?only=`, in pages."""
    state = state_of(request, now=timezone.now())
    own = access_of(request).tenants(Capability.TEMPLATES_VIEW)
    shown = own if not state.tenant else {state.tenant} & own if own is not None else {state.tenant}
    found = templates_of(shown, sought=state.q, state=state.only)
    rows = Paginator(found, PAGE_ROWS).get_page(state.page_number)
    return page(
        request,
        "templates",
        "dashboard/templates.html",
        rows=rows,
        templates=with_versions(rows),
        kinds=KINDS,
        extra_query=f"&{urlencode({'q': state.q, 'only': state.only})}",
    )


@requires_somewhere(Capability.TEMPLATES_VIEW)
@require_safe
def template_version(request: HttpRequest, tenant: str, slug: str, version: int) -> HttpResponse:
    """`?pool=` names the pool in whose tokens it is counted."""
    row = _visible(request, tenant, slug, version)
    pool = request.GET.get("pool", "")
    try:
        counter = counter_of_pool(pool)
    except NotFound as error:
        raise Http404(error.message) from error
    report = report_on(row.segments, counter)
    others = {each.version: each for each in row.template.versions.order_by("-version").defer("segments")}
    earlier = _earlier(others, version, request.GET.get("against", ""))
    ref = f"{slug}@{version}"
    return page(
        request,
        "templates",
        "dashboard/template_version.html",
        row=row,
        template_id=str(row.template),
        report=report,
        lints=[(lint, _name_of(row, lint.segment)) for lint in report.lints],
        error_codes=sorted({lint.code for lint in report.errors}),
        earlier=earlier,
        others=[each for each in others.values() if each.version != version],
        use=template_use(tenant, [ref], now=timezone.now()).get(ref),
        preview=_preview(row),
        parts=compare_versions(earlier.segments, row.segments, counter) if earlier else None,
        goldens=row.goldens.all(),
        pool=pool,
        pools=WorkerPool.objects.values_list("slug", flat=True)[:POOLS_MAX],
        may_publish=access_of(request).may(Capability.TEMPLATES_CHANGE, tenant),
    )


@requires_somewhere(Capability.TEMPLATES_CHANGE)
@require_POST
def template_step(request: HttpRequest, tenant: str, slug: str, version: int, step: str) -> HttpResponse:
    """`publish` or `retire`, when nobody changed the version since it was shown."""
    _visible(request, tenant, slug, version)
    if not access_of(request).may(Capability.TEMPLATES_CHANGE, tenant):
        raise PermissionDenied("Changing templates of this tenant needs another role.")
    seen = request.POST.get("revision", "")
    reason = request.POST.get("reason", "").strip()[:500]
    revision = int(seen) if seen.isascii() and seen.isdigit() and len(seen) <= 9 else None
    name = f"{tenant}/{slug}"
    try:
        if step == "publish":
            accept = request.POST.getlist("accept")[:CODES_MAX]
            publish_version(
                actor=actor_of(request), template=name, version=version, accept=accept, reason=reason,
                if_revision=revision,
            )  # fmt: skip
        elif step == "retire":
            if not _confirmed(request, tenant, slug, version):
                raise Invalid.field("typed", f"It is in use: type {name}@{version} to retire it.")
            retire_version(actor=actor_of(request), template=name, version=version, reason=reason, if_revision=revision)
        else:
            raise Http404("There is no such step.")
    except ControlError as error:
        messages.error(request, error.message)
    else:
        announce.changed("template")
        messages.success(request, f"{name}@{version} is {'published' if step == 'publish' else 'retired'}.")
    address = reverse("template-version", args=[tenant, slug, version])
    return HttpResponseRedirect(f"{address}?{state_of(request, now=timezone.now()).query()}")


def _confirmed(request: HttpRequest, tenant: str, slug: str, version: int) -> bool:
    """What requests still name is retired by typing its name."""
    ref = f"{slug}@{version}"
    used = template_use(tenant, [ref], now=timezone.now())
    return not used or request.POST.get("typed", "").strip() == f"{tenant}/{ref}"


def _earlier(others: dict[int, PromptTemplateVersion], version: int, against: str) -> PromptTemplateVersion | None:
    """The version to compare with: the named one, else the one before."""
    if against.isascii() and against.isdigit() and int(against) != version:
        return others.get(int(against))
    return next((each for number, each in others.items() if number < version), None)


def _preview(row: PromptTemplateVersion) -> list[tuple[str, str, str]]:
    """(name, kind, text) in the order of the prompt; placeholders stay as they are written, so no client's text."""
    left, shown = PREVIEW_CHARS_MAX, []
    for part in assembled(row.segments).parts:
        shown.append((part.name, part.kind, part.text[:left] + ("…" if len(part.text) > left else "")))
        left = max(left - len(part.text), 0)
    return shown


def _visible(request: HttpRequest, tenant: str, slug: str, version: int) -> PromptTemplateVersion:
    """Foreign and absent look the same."""
    try:
        if not access_of(request).may(Capability.TEMPLATES_VIEW, tenant):
            raise NotFound("not seen")
        return find_version(f"{tenant}/{slug}", version)
    except NotFound:
        raise Http404("There is no such version.") from None


def _name_of(row: PromptTemplateVersion, index: int | None) -> str:
    return "the template" if index is None else str(row.segments[index]["name"])
