"""The beat tick of publication: what a commit's own publication missed, and routers gone for good."""

from __future__ import annotations

import time
from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from controlplane.revocations.services import forget_acks
from controlplane.snapshots import services
from controlplane.snapshots.announcing import announced
from controlplane.snapshots.divergence import watch_routers
from controlplane.snapshots.hellos import forget_routers
from controlplane.snapshots.selectors import FORGOTTEN_AFTER_S

RECONCILE_EVERY_S = 60.0
ACKS_KEPT = timedelta(days=90)
"""One row for each revocation and router; a router that never came back is not worth more."""
_reconciled_at = -RECONCILE_EVERY_S
"""Monotonic time of this process's last full compilation."""


@shared_task(name="controlplane.snapshots.tasks.publish_pending", expires=8)
def publish_pending() -> None:
    global _reconciled_at
    with announced():
        if time.monotonic() - _reconciled_at >= RECONCILE_EVERY_S:
            services.reconcile()
            _reconciled_at = time.monotonic()
        else:
            services.publish_pending()
    watch_routers(timezone.now())
    forget_routers(unseen_since=timezone.now() - timedelta(seconds=FORGOTTEN_AFTER_S))
    forget_acks(made_before=timezone.now() - ACKS_KEPT)
