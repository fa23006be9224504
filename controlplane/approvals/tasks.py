"""The tick that closes change requests nobody approved in time."""

from __future__ import annotations

from celery import shared_task

from controlplane.approvals import services


@shared_task(expires=500)
def expire_change_requests() -> int:
    return services.expire_due()
