"""Beat's ticks: evaluate every rule, forget what is long over."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from controlplane.alerts import evaluation
from controlplane.alerts.models import Alert, Silence
from controlplane.fleet.valkey import announce

KEPT_FOR = timedelta(days=90)
DELETED_ROWS_MAX = 5000


@shared_task(expires=20)
def evaluate_rules() -> int | None:
    """How many alerts changed; None when another tick has had this moment."""
    changed = evaluation.evaluate()
    if changed:
        announce("alerts")
    return changed


@shared_task
def forget_alerts() -> int:
    """Deletes alerts and silences that ended long ago. How many."""
    before = timezone.now() - KEPT_FOR
    over = Alert.objects.filter(resolved_at__lt=before).values_list("pk", flat=True)[:DELETED_ROWS_MAX]
    deleted, _ = Alert.objects.filter(pk__in=list(over)).delete()
    return deleted + Silence.objects.filter(ends_at__lt=before).delete()[0]
