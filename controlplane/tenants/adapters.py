"""How sign-in differs from allauth's defaults."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class ClosedSignUp(DefaultAccountAdapter):
    """Accounts are made by administrators, never by visitors."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False
