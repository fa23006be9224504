"""Beat's tick of questions, and the simulation of one."""

from __future__ import annotations

from celery import shared_task

from controlplane.what_if import running


@shared_task(expires=8)
def tick() -> bool:
    """Ends what died, then begins what waits longest. Whether one was begun."""
    running.fail_abandoned()
    waiting = running.next_to_run()
    if waiting is not None:
        run_what_if.apply_async(args=[waiting], expires=60)
    return waiting is not None


@shared_task(soft_time_limit=running.SOFT_LIMIT_S, time_limit=running.SOFT_LIMIT_S + 20)
def run_what_if(what_if_id: int) -> str:
    """The question's state afterwards."""
    return running.run(what_if_id)


@shared_task
def forget_what_ifs() -> int:
    return running.forget_old()
