"""The tick that writes down the end of placement rules; routers end them by their own clocks."""

from __future__ import annotations

from celery import shared_task

from controlplane.placements import services


@shared_task(expires=8)
def expire_placements() -> int:
    return services.expire_placements()
