"""Django's mail backend of an installation without a mail server: it refuses, so that nobody waits for a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend


class NoMailServer(Exception):
    """TIDEMARK_EMAIL_URL is empty."""


class EmailBackend(BaseEmailBackend):
    def send_messages(self, email_messages: Sequence[EmailMessage]) -> NoReturn:
        raise NoMailServer
