"""Beat's tick of reports, the making of one run, and one attempt at a delivery."""

from __future__ import annotations

from celery import shared_task

from controlplane.reports import delivering, producing, scheduling


@shared_task(expires=8)
def tick() -> int:
    """Begins what is due, makes one report at a time, and attempts deliveries that are due. How many were begun."""
    begun = scheduling.begin_due()
    run_id = scheduling.next_to_make()
    if run_id is not None:
        make_report.apply_async(args=[run_id], expires=60)
    for delivery_id in delivering.due():
        deliver_report.apply_async(args=[delivery_id], expires=60)
    return len(begun)


@shared_task(soft_time_limit=producing.SOFT_LIMIT_S, time_limit=producing.SOFT_LIMIT_S + 20)
def make_report(run_id: int) -> str:
    """The run's state afterwards."""
    return producing.make(run_id)


@shared_task(soft_time_limit=60, time_limit=70)
def deliver_report(delivery_id: int) -> str:
    """One attempt. The delivery's state afterwards."""
    row = delivering.attempt(delivery_id)
    return str(row.state) if row else ""


@shared_task
def forget_reports() -> int:
    return scheduling.forget_old()
