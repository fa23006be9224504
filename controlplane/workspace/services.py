"""Every change of saved views. They are their owner's alone and change nothing for others: they are not audited."""

from __future__ import annotations

from django.db import transaction

from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.saving import save_checked
from controlplane.tenants.models import User
from controlplane.workspace.models import SavedView

VIEWS_MAX = 100
"""Of one person."""


@transaction.atomic
def save_view(*, user: User, name: str, path: str, query: str) -> SavedView:
    """Keep an address under a name; a name that is there gets the address. Raises Invalid, Conflict when full."""
    if not path.startswith("/") or path.startswith("//") or "\\" in path:
        raise Invalid("A view is a page of this dashboard.")
    mine = SavedView.objects.select_for_update().filter(user=user)
    view = mine.filter(name=name.strip()).first() or SavedView(user=user, name=name.strip())
    if view.pk is None and mine.count() >= VIEWS_MAX:
        raise Conflict(f"You have {VIEWS_MAX} saved views. Delete one first.")
    view.path, view.query = path, query.lstrip("?")
    save_checked(view)
    return view


@transaction.atomic
def rename_view(*, user: User, view_id: int, name: str) -> SavedView:
    """Raises NotFound, Invalid, Conflict when the name is taken."""
    view = _own(user, view_id)
    view.name = name.strip()
    save_checked(view)
    return view


@transaction.atomic
def make_default(*, user: User, view_id: int | None) -> None:
    """The view that stands for the bare `/`; None = the fleet page. Raises NotFound."""
    view = _own(user, view_id) if view_id is not None else None
    SavedView.objects.filter(user=user, is_default=True).update(is_default=False)
    if view:
        view.is_default = True
        save_checked(view)


@transaction.atomic
def delete_view(*, user: User, view_id: int) -> None:
    _own(user, view_id).delete()


def _own(user: User, view_id: int) -> SavedView:
    view = SavedView.objects.select_for_update().filter(user=user, pk=view_id).first()
    if view is None:
        raise NotFound("There is no such saved view.")
    return view
