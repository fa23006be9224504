"""The tick that ends overrides in the database; routers end them by their own clocks."""

from __future__ import annotations

from celery import shared_task

from controlplane.policies import services


@shared_task(expires=8)
def expire_overrides() -> int:
    return services.expire_overrides()
