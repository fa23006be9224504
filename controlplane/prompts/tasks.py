"""The tick that computes published templates' tokens again."""

from __future__ import annotations

from celery import shared_task

from controlplane.prompts.goldens import check_versions, published_versions


@shared_task(expires=550)
def check_templates() -> int:
    """How many pairs of version and pool were compared."""
    return len(check_versions(published_versions()))
