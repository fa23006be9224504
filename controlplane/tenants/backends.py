"""How the user of a session is loaded: together with what they hold, in one query."""

from __future__ import annotations

from allauth.account.auth_backends import AuthenticationBackend

from controlplane.tenants.models import User


class OperatorBackend(AuthenticationBackend):
    """allauth's sign-in; every request with a session comes through `get_user`."""

    def get_user(self, user_id: int) -> User | None:
        return self._allowed(User.objects.with_memberships().filter(pk=user_id).first())

    async def aget_user(self, user_id: int) -> User | None:
        return self._allowed(await User.objects.with_memberships().filter(pk=user_id).afirst())

    def _allowed(self, user: User | None) -> User | None:
        return user if user is not None and self.user_can_authenticate(user) else None
