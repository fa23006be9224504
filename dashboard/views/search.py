"""The palette's search: as a page without a script, as a list with one, and as completions of a field."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard import search as finding
from dashboard.access import signed_in
from dashboard.scope import state_of
from dashboard.views.pages import page


@login_required
@never_cache
@require_safe
def search(request: HttpRequest) -> HttpResponse:
    """`text`: what is looked for; `list=1` gives the findings alone."""
    text = request.GET.get("text", "")
    groups = finding.search(text, user=signed_in(request), state=state_of(request, now=timezone.now()))
    if request.GET.get("list"):
        return render(request, "dashboard/_fragments/search_hits.html", {"groups": groups})
    return page(request, "search", "dashboard/search.html", panels=False, text=text, groups=groups)


@login_required
@never_cache
@require_safe
def names(request: HttpRequest, kind: str) -> HttpResponse:
    found = finding.names(kind, request.GET.get("text", ""), user=signed_in(request))
    return JsonResponse({"names": found})
