"""The tick of roll-outs."""

from __future__ import annotations

from celery import shared_task

from controlplane.rollouts.driver import drive_rollouts


@shared_task(expires=8)
def drive() -> int:
    return drive_rollouts()
