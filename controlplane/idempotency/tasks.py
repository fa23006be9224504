"""What beat asks for: see `settings.CELERY_BEAT_SCHEDULE`."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from controlplane.idempotency.services import forget_old


@shared_task
def forget_old_calls() -> None:
    forget_old(timezone.now())
