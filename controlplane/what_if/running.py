"""From a question that waits to its answer: once, with progress, and never "running" for ever.

A question is claimed by its row. Whoever simulates it renews its lease with each progress that is saved; a lease that
has run out says that the process died, and `fail_abandoned` ends the question. It is not begun again by itself:
what killed its process would kill the next one.
"""

from __future__ import annotations

import time
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.db.models import F
from django.utils import timezone

from controlplane.telemetry.recorded import write_recorded
from controlplane.telemetry.windows import Scope
from controlplane.what_if.models import WhatIf
from controlplane.what_if.simulating import SECONDS_MAX, Message, NoAnswer, messages

State = WhatIf.State
LEASE = timedelta(seconds=60)
"""Reading what was recorded takes the longest between two progresses: some seconds for REQUESTS_MAX."""
SAVED_EVERY_S = 1.0
REQUESTS_MAX = 100_000
"""Replayed of one question; the newest of the range."""
SOFT_LIMIT_S = SECONDS_MAX + 40
"""Of the task: the simulator's own bound, and reading what was recorded."""
DIED = "Its process ended before the answer. Ask again."
KEPT_FOR = timedelta(days=60)
KEPT_MAX = 500
"""The newest."""


class Ended(Exception):
    """Somebody else ended the question: it was cancelled, or its lease ran out."""


def next_to_run(now: datetime | None = None) -> int | None:
    """The question that waits longest; None while another one is under way, or none waits."""
    now = now or timezone.now()
    if WhatIf.objects.filter(state=State.RUNNING, lease_until__gt=now).exists():
        return None
    return WhatIf.objects.filter(state=State.WAITING).order_by("id").values_list("pk", flat=True).first()


def fail_abandoned(now: datetime | None = None) -> int:
    """Ends questions whose process died. How many."""
    now = now or timezone.now()
    dead = WhatIf.objects.filter(state=State.RUNNING, lease_until__lte=now)
    return dead.update(state=State.FAILED, error=DIED, doing="", lease_until=None, finished_at=now)


def run(what_if: int) -> str:
    """The question's state afterwards; "" when it does not wait: a late or repeated task changes nothing."""
    now = timezone.now()
    waiting = WhatIf.objects.filter(pk=what_if, state=State.WAITING)
    if not waiting.update(state=State.RUNNING, lease_until=now + LEASE, started_at=now, doing="recorded traffic"):
        return ""
    row = WhatIf.objects.get(pk=what_if)
    try:
        _settle(row, state=State.DONE, answer=_answer(row))
    except Ended:
        pass
    except NoAnswer as error:
        _settle(row, state=State.FAILED, error=str(error))
    except SoftTimeLimitExceeded:
        _settle(row, state=State.FAILED, error="It took too long.")
    except Exception as error:
        # The type only: its words may hold what must not be kept.
        _settle(row, state=State.FAILED, error=f"{type(error).__name__} while simulating.")
        raise
    return str(WhatIf.objects.values_list("state", flat=True).get(pk=what_if))


def forget_old(now: datetime | None = None) -> int:
    """Deletes questions past their retention. How many."""
    ended = WhatIf.objects.exclude(state__in=(State.WAITING, State.RUNNING))
    deleted = ended.filter(created_at__lt=(now or timezone.now()) - KEPT_FOR).delete()[0]
    beyond = list(WhatIf.objects.order_by("-id").values_list("pk", flat=True)[KEPT_MAX : KEPT_MAX + 1])
    return deleted + (ended.filter(pk__lte=beyond[0]).delete()[0] if beyond else 0)


def _answer(row: WhatIf) -> dict[str, Any]:
    """Raises NoAnswer or Ended."""
    with TemporaryDirectory(prefix="tidemark-what-if-") as folder:
        trace = Path(folder) / "recorded.jsonl"
        written = write_recorded(_scope(row), trace, limit=REQUESTS_MAX)
        _save(row, requests=written)
        if not written:
            raise NoAnswer("What was recorded in this range has been deleted.")
        return _followed(row, trace)


def _followed(row: WhatIf, trace: Path) -> dict[str, Any]:
    """Saves progress at most each SAVED_EVERY_S; `_save` raises Ended when the question was ended meanwhile."""
    saved_at, progress = time.monotonic(), dict[str, Any]()
    with closing(messages(trace, row.question)) as said:
        for message in said:
            if message is not None and "answer" in message:
                return dict(message["answer"])
            progress |= _progress(message)
            if time.monotonic() - saved_at >= SAVED_EVERY_S:
                _save(row, **progress)
                saved_at, progress = time.monotonic(), {}
    raise NoAnswer("The simulator gave no answer.")


def _progress(message: Message | None) -> dict[str, Any]:
    told = (message or {}).get("progress")
    if not isinstance(told, dict):
        return {}
    words = f"{told.get('scenario', '')}, run {told.get('seed', '')}"
    return {"simulated": int(told.get("done", 0)), "to_simulate": int(told.get("of", 0)), "doing": words[:120]}


def _save(row: WhatIf, **values: Any) -> None:
    running = WhatIf.objects.filter(pk=row.pk, state=State.RUNNING)
    if not running.update(lease_until=timezone.now() + LEASE, **values):
        raise Ended


def _settle(row: WhatIf, *, state: str, answer: dict[str, Any] | None = None, error: str = "") -> None:
    """Only of what is still running: what was cancelled meanwhile stays cancelled."""
    WhatIf.objects.filter(pk=row.pk, state=State.RUNNING).update(
        state=state, answer=answer, error=error[:300], doing="", lease_until=None, finished_at=timezone.now(),
        **({"simulated": F("to_simulate")} if state == State.DONE else {}),
    )  # fmt: skip


def _scope(row: WhatIf) -> Scope:
    return Scope(from_=row.from_at, to=row.to_at, tenant=row.tenant, namespace=row.namespace, pool=row.pool)
