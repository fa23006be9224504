"""The tick that forgets deliveries of work nobody asks for any more."""

from __future__ import annotations

from celery import shared_task

from controlplane.deadletters import services


@shared_task
def forget_deliveries() -> int:
    return services.forget_old()
