"""The bell of the top bar alone, for pages that no socket keeps current."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard.access import access_of
from dashboard.bell import polled_bell
from dashboard.scope import state_of


@login_required
@never_cache
@require_safe
def bell(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    return HttpResponse(polled_bell(access_of(request), state_of(request, now=now).across(), now=now))
