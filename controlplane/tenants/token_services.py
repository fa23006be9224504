"""Personal API tokens `tmp_<token id>_<secret>`: issued, checked, revoked. The secret is returned once (S13).

The form is fixed, so that scanners of repositories and logs find one that leaked: `tmp_[0-9a-z]{12}_[A-Za-z0-9_-]{43}`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.audit.services import record
from controlplane.errors import Conflict, Invalid, NotFound
from controlplane.saving import save_checked
from controlplane.tenants.models import PersonalToken, User
from controlplane.tenants.roles import Capability
from router.contract.secrets import new_api_key

TOKEN_PREFIX = "tmp_"  # noqa: S105  (the form of every token, not one of them)
TOKEN_PATTERN = re.compile(r"tmp_([0-9a-z]{12})_([A-Za-z0-9_-]{43})")
TOKENS_PER_USER_MAX = 50
"""Tokens that are neither revoked nor expired."""
LIFETIME_MAX = timedelta(days=366)
USE_NOTED_EVERY = timedelta(minutes=1)
"""A token in steady use costs one write a minute."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    token: PersonalToken
    text: str
    """The whole token: shown to its owner now and never again."""

    def __repr__(self) -> str:
        return f"IssuedToken({self.token})"


def issue_token(
    *, actor: str, user: User, name: str, scopes: Sequence[str], expires_at: datetime, request_id: str = ""
) -> IssuedToken:
    """A token of `user` with at most the capabilities that the user holds somewhere. Raises Invalid or Conflict."""
    now = timezone.now()
    if not now < expires_at <= now + LIFETIME_MAX:
        raise Invalid.field("expires_at", f"The expiry must lie within the next {LIFETIME_MAX.days} days.")
    wanted = _checked_scopes(user, scopes)
    with transaction.atomic():
        owner = User.objects.select_for_update().get(pk=user.pk)
        if _usable(now).filter(user=owner).count() >= TOKENS_PER_USER_MAX:
            raise Conflict(f"You have {TOKENS_PER_USER_MAX} tokens; revoke one first.")
        token_id, secret, _ = new_api_key()
        token = PersonalToken(
            user=owner, token_id=token_id, secret_hash=_hash(token_id, secret), name=name, scopes=wanted,
            expires_at=expires_at,
        )  # fmt: skip
        save_checked(token)
        _record(token, actor=actor, verb="issue", request_id=request_id)
    return IssuedToken(token, f"{TOKEN_PREFIX}{token_id}_{secret}")


def revoke_token(*, actor: str, user: User, token_id: str, request_id: str = "") -> PersonalToken:
    """Final. Revoking a revoked token changes nothing."""
    with transaction.atomic():
        token = PersonalToken.objects.select_for_update().filter(user=user, token_id=token_id).first()
        if token is None:
            raise NotFound("You have no such token.")
        if token.revoked_at is None:
            token.revoked_at = timezone.now()
            save_checked(token)
            _record(token, actor=actor, verb="revoke", request_id=request_id)
    return token


def token_from(text: str, *, now: datetime) -> PersonalToken | None:
    """The usable token of that text, with its owner, or None. Unknown, wrong and revoked take the same time."""
    found = TOKEN_PATTERN.fullmatch(text)
    token_id, secret = (found[1], found[2]) if found else ("", "")
    token = _usable(now).select_related("user").filter(token_id=token_id).first()
    expected = token.secret_hash if token else _hash("", "")
    fits = hmac.compare_digest(expected, _hash(token_id, secret))
    return token if token is not None and fits and token.user.is_active else None


def note_use(token: PersonalToken, now: datetime) -> None:
    """Keep when it was last used. A use that cannot be noted is no reason to refuse it."""
    if token.last_used_at is not None and now - token.last_used_at < USE_NOTED_EVERY:
        return
    try:
        PersonalToken.objects.filter(pk=token.pk).update(last_used_at=now)
    except DatabaseError:
        return


def _usable(now: datetime) -> QuerySet[PersonalToken]:
    return PersonalToken.objects.filter(Q(revoked_at=None), expires_at__gt=now)


def _checked_scopes(user: User, scopes: Sequence[str]) -> list[str]:
    held = {item for item in Capability if user.access.may_somewhere(item)}
    foreign = sorted(set(scopes) - held)
    if foreign:
        raise Invalid.field("scopes", f"You do not hold {foreign[0]!r}: a token has at most what its owner holds.")
    if not scopes:
        raise Invalid.field("scopes", "Name at least one capability.")
    return sorted(set(scopes))


def _hash(token_id: str, secret: str) -> str:
    return settings.FLEET_KEY.mac("personal-token/v1", token_id, secret).hex()


def _record(token: PersonalToken, *, actor: str, verb: str, request_id: str) -> None:
    facts: dict[str, object] = {
        "token_id": token.token_id,
        "user": token.user.get_username(),
        "name": token.name,
        "scopes": list(token.scopes),
        "expires_at": token.expires_at.isoformat(),
        "revoked": token.revoked_at is not None,
    }
    record(
        actor=actor,
        action=f"token.{verb}",
        object_type="token",
        object_id=token.token_id,
        before=None if verb == "issue" else facts | {"revoked": False},
        after=facts,
        affects_routing=False,
        request_id=request_id,
    )
