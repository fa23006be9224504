"""One revision of a policy: its values against the one before, and against what holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.errors import NotFound
from controlplane.policies.models import PolicyRevision
from controlplane.policies.revisions import history, revision
from dashboard.access import viewer_required
from dashboard.policies import path_of
from dashboard.views.pages import page

SCOPE_MAX = 120
NUMBER_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of two revisions; None = not set there."""

    name: str
    before: Any
    after: Any

    @property
    def same(self) -> bool:
        return bool(self.before == self.after)


@viewer_required
@require_safe
def policy_revision(request: HttpRequest, kind: str, scope: str, number: int) -> HttpResponse:
    """`?against=` names the other revision; without it the one in force before."""
    row = _revision(kind, scope, number)
    rows = list(history(kind, row.scope).order_by("-number"))
    other = _other(rows, row, request.GET.get("against", ""))
    return page(
        request,
        "policies",
        "dashboard/policy_revision.html",
        panels=False,
        row=row,
        other=other,
        others=[each for each in rows if each.pk != row.pk],
        differences=differences(other.values if other else None, row.values),
        scope_path=path_of(row.scope),
    )


def differences(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[Difference]:
    """Field by field; what is set in neither is left out."""
    old, new = before or {}, after or {}
    names = [*new, *(name for name in old if name not in new)]
    return [Difference(name, old.get(name), new.get(name)) for name in names]


def _revision(kind: str, scope: str, number: int) -> PolicyRevision:
    if number > NUMBER_MAX or len(scope) > SCOPE_MAX:
        raise Http404("There is no such revision.")
    try:
        return revision(kind, scope, number)
    except NotFound as error:
        raise Http404(error.message) from error


def _other(rows: list[PolicyRevision], row: PolicyRevision, against: str) -> PolicyRevision | None:
    if against.isascii() and against.isdigit():
        return next((each for each in rows if str(each.number) == against), None)
    return next(
        (each for each in rows if each.number < row.number and each.origin != PolicyRevision.Origin.CANDIDATE), None
    )
