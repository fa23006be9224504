"""The first run: what an empty installation lacks, step by step, and making the first pool."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import ControlError
from controlplane.fleet.services import create_pool
from dashboard import announce
from dashboard.access import actor_of, change_required, viewer_required
from dashboard.forms import Form, posted, whole
from dashboard.views.pages import page

POOL_FIELDS = ("slug", "name", "models", "block_size")


@viewer_required
@require_safe
def first_run(request: HttpRequest) -> HttpResponse:
    return page(request, "first_run", "dashboard/first_run.html", active="fleet")


@change_required
@require_http_methods(["GET", "HEAD", "POST"])
def pool_add(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _pool_page(request, Form({"block_size": "16"}))
    form = Form(posted(request, POOL_FIELDS))
    try:
        pool = create_pool(
            actor=actor_of(request),
            slug=form.values["slug"],
            name=form.values["name"],
            models=form.values["models"].replace(",", " ").split(),
            block_size=whole(form.values["block_size"], "block_size") or 0,
        )
    except ControlError as error:
        return _pool_page(request, form.refused(error), status=error.status)
    announce.changed("fleet")
    messages.success(request, f"The pool {pool.slug} is there. Add its first worker.")
    return HttpResponseRedirect(reverse("worker-add"))


def _pool_page(request: HttpRequest, form: Form, *, status: int = 200) -> HttpResponse:
    return page(request, "pool-add", "dashboard/pool_add.html", active="workers", status=status, form=form)
