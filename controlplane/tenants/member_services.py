"""Who has which role where. Each change is one transaction with one audit entry."""

from __future__ import annotations

from django.db import transaction

from controlplane.audit.services import record
from controlplane.errors import Invalid, NotFound
from controlplane.saving import save_checked
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.roles import Role


def grant_role(*, actor: str, username: str, role: str, tenant: str = "", request_id: str = "") -> Membership:
    """Give a user a role in the tenant of that slug, or ("") in the whole fleet, in place of the one it had there.

    The role that it has already changes nothing. Raises Invalid for an unknown role, NotFound for user or tenant.
    """
    if role not in Role:
        raise Invalid.field("role", f"Role must be one of: {', '.join(Role)}.")
    with transaction.atomic():
        user, place = _user(username), _place(tenant)
        row = Membership.objects.select_for_update().filter(user=user, tenant=place).first()
        if row is not None and row.role == role:
            return row
        before = _facts(row) if row else None
        row = row or Membership(user=user, tenant=place)
        row.role = role
        save_checked(row)
        _record(row, actor=actor, verb="grant", before=before, after=_facts(row), request_id=request_id)
    return row


def withdraw_role(*, actor: str, username: str, tenant: str = "", request_id: str = "") -> None:
    """Take a user's role there away. Raises NotFound when there is none."""
    with transaction.atomic():
        place = _place(tenant)
        row = Membership.objects.select_for_update().filter(user__username=username, tenant=place).first()
        if row is None:
            raise NotFound(f"{username!r} has no role there.")
        _record(row, actor=actor, verb="withdraw", before=_facts(row), after=None, request_id=request_id)
        row.delete()


def account_facts(user: User) -> dict[str, object]:
    """Of an account, what decides what it may do; never its password."""
    return {
        "user": user.get_username(),
        "is_active": user.is_active,
        "is_staff": user.is_staff,
        "is_superuser": user.is_superuser,
    }


def record_account(
    user: User, *, actor: str, before: dict[str, object] | None, after: dict[str, object] | None
) -> None:
    """One audit entry for an account made, changed or removed in the administration, in that transaction."""
    verb = "delete" if after is None else "create" if before is None else "update"
    record(
        actor=actor, action=f"user.{verb}", object_type="user", object_id=user.get_username(),
        before=before, after=after, affects_routing=False,
    )  # fmt: skip


def _user(username: str) -> User:
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise NotFound(f"There is no user {username!r}.")
    return user


def _place(tenant: str) -> Tenant | None:
    if not tenant:
        return None
    row = Tenant.objects.filter(slug=tenant).first()
    if row is None:
        raise NotFound(f"There is no tenant {tenant!r}.")
    return row


def _facts(row: Membership) -> dict[str, object]:
    return {"user": row.user.get_username(), "tenant": row.tenant.slug if row.tenant else None, "role": str(row.role)}


def _record(
    row: Membership,
    *,
    actor: str,
    verb: str,
    before: dict[str, object] | None,
    after: dict[str, object] | None,
    request_id: str,
) -> None:
    record(
        actor=actor,
        action=f"member.{verb}",
        object_type="member",
        object_id=f"{row.user.get_username()}@{row.tenant.slug if row.tenant else '*'}"[:200],
        before=before,
        after=after,
        affects_routing=False,
        request_id=request_id,
    )
