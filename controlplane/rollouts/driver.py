"""What the tick does with each roll-out: judge, then roll back, move on, or wait."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.errors import ControlError
from controlplane.policies.models import Rollout
from controlplane.policies.rows import scope_exists
from controlplane.rollouts.guard import judge
from controlplane.rollouts.samples import SETTLE_S, arms
from controlplane.rollouts.services import SYSTEM, advance_rollout, limits_from, note_verdict, roll_back

log = logging.getLogger(__name__)


def drive_rollouts(now: datetime | None = None) -> int:
    """How many took a step. Running it twice at once is harmless: the second finds another revision."""
    moment = now or timezone.now()
    running = list(Rollout.objects.filter(state=Rollout.State.RUNNING))
    return sum(_drive(rollout, moment) for rollout in running)


def _drive(rollout: Rollout, now: datetime) -> bool:
    try:
        return _step(rollout, now)
    except ControlError as error:
        log.warning("roll-out %d was not moved: %s", rollout.pk, error.code)
        return False


def _step(rollout: Rollout, now: datetime) -> bool:
    """Raises ControlError, such as Stale where somebody else moved it meanwhile."""
    seen = rollout.revision
    if not scope_exists(rollout.kind, rollout.scope):
        roll_back(rollout.pk, actor=SYSTEM, reason="Its pool or namespace is gone.", if_revision=seen)
        return True
    candidate, others = arms(rollout)
    verdict = judge(candidate, others, limits_from(rollout.guards))
    note_verdict(rollout, verdict, candidate, others)
    if verdict.state == "breach":
        roll_back(rollout.pk, actor=SYSTEM, reason=verdict.sentence, if_revision=seen)
        return True
    is_over = now >= rollout.stage_at + timedelta(seconds=rollout.stage_s + SETTLE_S)
    if verdict.state == "pass" and is_over:
        advance_rollout(rollout.pk, actor=SYSTEM, reason=verdict.sentence, if_revision=seen)
        return True
    return False
