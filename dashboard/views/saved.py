"""One's own saved views: kept, opened, renamed, made the first page, deleted."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.errors import ControlError
from controlplane.tenants.models import User
from controlplane.workspace import services
from controlplane.workspace.models import SavedView
from dashboard.access import signed_in
from dashboard.views.pages import page


@login_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def saved_views(request: HttpRequest) -> HttpResponse:
    """POST keeps `path` and `query` under `name`."""
    user, status = signed_in(request), 200
    if request.method == "POST":
        given = {name: request.POST.get(name, "") for name in ("name", "path", "query")}
        try:
            view = services.save_view(user=user, **given)
        except ControlError as error:
            messages.error(request, error.message)
            status = error.status
        else:
            messages.success(request, f"“{view.name}” is saved.")
            return HttpResponseRedirect(view.address)
    rows = SavedView.objects.filter(user=user)
    return page(request, "saved-views", "dashboard/saved_views.html", panels=False, status=status, rows=rows)


@login_required
@require_POST
def saved_view_step(request: HttpRequest, view_id: int, step: str) -> HttpResponse:
    user = signed_in(request)
    steps: dict[str, Callable[[], object]] = {
        "rename": lambda: services.rename_view(user=user, view_id=view_id, name=request.POST.get("name", "")),
        "default": lambda: services.make_default(user=user, view_id=view_id),
        "no-default": lambda: services.make_default(user=user, view_id=None),
        "delete": lambda: services.delete_view(user=user, view_id=view_id),
    }
    if step not in steps:
        raise Http404("There is no such step.")
    try:
        steps[step]()
    except ControlError as error:
        messages.error(request, error.message)
    return HttpResponseRedirect("/views/")


def default_address(user: User) -> str:
    """Where the bare `/` leads; "" = nowhere else."""
    view = SavedView.objects.filter(user=user, is_default=True).first()
    return view.address if view and view.address != "/" else ""
