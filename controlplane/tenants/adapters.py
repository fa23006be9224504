"""How sign-in differs from allauth's defaults."""

from __future__ import annotations

import base64

from allauth.account.adapter import DefaultAccountAdapter
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from cryptography.fernet import Fernet
from django.conf import settings
from django.http import HttpRequest


class ClosedSignUp(DefaultAccountAdapter):
    """Accounts with a password are made by administrators, never by visitors."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False


class IssuersAccounts(DefaultSocialAccountAdapter):
    """Whom the configured issuer vouches for gets an account, which holds nothing until somebody grants a role."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return bool(settings.CONFIG.oidc_issuer)


class SealedSecrets(DefaultMFAAdapter):
    """Second factors are useless to who reads the database alone."""

    def encrypt(self, text: str) -> str:
        return _cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return _cipher().decrypt(encrypted_text.encode()).decode()


def _cipher() -> Fernet:
    return Fernet(base64.urlsafe_b64encode(settings.FLEET_KEY.subkey("second-factors/v1")))
