"""Panels of workers: the state table, those that leave, and one worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.paginator import Paginator

from controlplane.fleet.draining import Drained, leaving_rows
from controlplane.fleet.selectors import WorkerRow
from controlplane.telemetry.calibration import Learnt, learnt_rates
from controlplane.telemetry.windows import Scope
from controlplane.telemetry.worker_figures import EventSums, event_sums, running_at
from dashboard.data import PageData
from dashboard.freshness import Freshness, of_ages
from dashboard.panels.base import Context, Panel

PAGE_ROWS = 50
TESTED_RATE_OFF = 0.25
"""A learnt rate this far from the configured one is worth a look."""


@dataclass(frozen=True, slots=True)
class Line:
    """A worker with what routers and events tell of it."""

    row: WorkerRow
    learnt: Learnt | None
    events: EventSums | None

    @property
    def rate(self) -> float | None:
        """Learnt prefill tokens/s; None = no router was heard, or it only knows the pool's."""
        return self.learnt.tokens_per_s if self.learnt is not None and self.learnt.samples else None

    @property
    def rate_off(self) -> float | None:
        """Learnt ÷ configured − 1."""
        configured = self.row.prefill_tokens_per_s
        return None if self.rate is None or not configured else self.rate / configured - 1

    @property
    def credit(self) -> float | None:
        return None if self.learnt is None else self.learnt.credit

    @property
    def matched(self) -> str | None:
        return None if self.learnt is None else self.learnt.matched

    @property
    def gaps(self) -> float | None:
        return None if self.events is None or not self.events.seconds else self.events.gaps

    @property
    def rate_is_off(self) -> bool:
        return self.rate_off is not None and abs(self.rate_off) > TESTED_RATE_OFF


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    label: str
    help: str
    sorts: Callable[[Line], float | str | None]
    num: bool = True


COLUMNS = (
    Column("name", "Worker", "", lambda line: line.row.worker_id, num=False),
    Column("state", "State", "", lambda line: f"{line.row.state} {line.row.health}", num=False),
    Column("running", "Run", "Requests running, at the last poll", lambda line: line.row.running),
    Column("waiting", "Wait", "Requests waiting, at the last poll", lambda line: line.row.waiting),
    Column("kv", "KV use", "Blocks held by running requests", lambda line: line.row.kv_use),
    Column("cached", "Cached", "Blocks in the cache, by KV events", lambda line: line.row.resident_share),
    Column("evictions", "Evict/min", "Blocks removed", lambda line: line.row.evictions_per_s),
    Column("gpu", "GPU", "Utilisation", lambda line: line.row.gpu.get("utilisation")),
    Column("rate", "Prefill learnt", "Tokens/s that routers measured, against the setting", lambda line: line.rate),
    Column("credit", "Credit", "Predicted hit tokens that it delivers", lambda line: line.credit),
    Column("matched", "Matched", "By its own blocks (exact), or by text", lambda line: line.matched, num=False),
    Column("gaps", "Event gaps", "In the range", lambda line: line.gaps),
    Column("age", "Poll age", "Since the last good poll", lambda line: line.row.poll_age_s),
    Column("version", "Version", "", lambda line: str(line.row.facts.get("version") or ""), num=False),
    Column("findings", "Findings", "Open ones", lambda line: len(line.row.findings)),
)  # fmt: skip
_BY_KEY = {column.key: column for column in COLUMNS}

KINDS: Mapping[str, tuple[str, Callable[[WorkerRow], bool]]] = {
    "ready": ("ready", lambda row: row.state == "ready" and row.health == "ok"),
    "leaving": ("draining or in maintenance", lambda row: row.state != "ready"),
    "away": ("down, stale or never polled", lambda row: row.health != "ok"),
    "findings": ("with open findings", lambda row: bool(row.findings)),
    "events": ("whose events are not live", lambda row: row.event_state != "live"),
}


def _workers(data: PageData) -> Context:
    shown = [line for line in _lines(data) if _wanted(line.row, data)]
    rows = Paginator(_sorted(shown, data.state.sort), PAGE_ROWS).get_page(data.state.page_number)
    return {
        "rows": rows,
        "all_workers": len(data.workers),
        "columns": [_head(column, data) for column in COLUMNS],
        "kind": KINDS[data.state.only][0] if data.state.only in KINDS else "",
        "newer": data.state.query(page=str(rows.number - 1)),
        "older": data.state.query(page=str(rows.number + 1)),
        "everything": data.state.query(q="", only="", page=""),
    }


def _lines(data: PageData) -> list[Line]:
    learnt, events = data.ask(_learnt), data.ask(event_sums)
    return [Line(row, learnt.get(row.worker_id), events.get(row.worker_id)) for row in data.workers]


def _learnt(scope: Scope, *, now: datetime) -> dict[str, Learnt]:
    return learnt_rates(now=now)


def _wanted(row: WorkerRow, data: PageData) -> bool:
    state = data.state
    kind = KINDS.get(state.only)
    text = f"{row.worker_id} {row.url} {row.facts.get('version', '')} {row.state} {row.health}".lower()
    return (kind is None or kind[1](row)) and state.q.lower() in text and state.worker in ("", row.worker_id)


def _sorted(lines: list[Line], sort: str) -> list[Line]:
    """Unknown values come last, whichever way."""
    column = _BY_KEY.get(sort.removeprefix("-"), COLUMNS[0])
    known = [line for line in lines if column.sorts(line) is not None]
    unknown = [line for line in lines if column.sorts(line) is None]
    return sorted(known, key=column.sorts, reverse=sort.startswith("-")) + unknown  # type: ignore[arg-type]


def _head(column: Column, data: PageData) -> dict[str, object]:
    """Its first click sorts figures from the largest, names from the first."""
    sort = data.state.sort or "name"
    on, down = sort.removeprefix("-") == column.key, sort.startswith("-")
    next_sort = column.key if (on and down) or (not on and not column.num) else f"-{column.key}"
    direction = ("descending" if down else "ascending") if on else ""
    return {"column": column, "sorted": direction, "q": data.state.query(sort=next_sort, page="")}


def _polls(data: PageData) -> Freshness:
    return of_ages(data, [row.poll_age_s for row in data.workers], "polls")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a worker that takes nothing more has come."""

    drained: Drained
    began: float | None
    """Requests that ran there when it was asked to; None = not kept."""
    left: float | None
    """Still running by its own word, or under way by the routers', whichever is more; None = unknown."""

    @property
    def done(self) -> float | None:
        return None if self.began is None or self.left is None else max(self.began - self.left, 0.0)


def _leaving(data: PageData) -> Context:
    return {"leaving": _progress(leaving_rows(data.workers, now=data.now), data)}


def _progress(drained: list[Drained], data: PageData) -> list[Progress]:
    if not drained:
        return []
    began = running_at({each.row.worker_id: each.since for each in drained if each.since is not None})
    learnt = data.ask(_learnt)
    return [_progress_of(each, began.get(each.row.worker_id), learnt.get(each.row.worker_id)) for each in drained]


def _progress_of(drained: Drained, began: float | None, learnt: Learnt | None) -> Progress:
    row = drained.row
    says = row.running if row.health == "ok" else None
    under_way = float(learnt.outstanding) if learnt is not None else None
    known = [value for value in (says, under_way) if value is not None]
    left = max(known) if known else None
    began = max(began, left) if began is not None and left is not None else began
    return Progress(drained, began, left)


def _one(data: PageData) -> Line | None:
    return next((line for line in _lines(data) if line.row.worker_id == data.state.item), None)


def _worker_now(data: PageData) -> Context:
    line = _one(data)
    return {
        "line": line,
        "row": line.row if line else None,
        "facts": sorted(line.row.facts.items()) if line else [],
        "rate_age": None if line is None or line.learnt is None or line.learnt.age_s is None
        else data.now - timedelta(seconds=line.learnt.age_s),
    }  # fmt: skip


def _worker_leaving(data: PageData) -> Context:
    rows = [row for row in data.every_worker if row.worker_id == data.state.item]
    return {"leaving": _progress(leaving_rows(rows, now=data.now), data), "one": True}


def _of_one(data: PageData) -> Freshness:
    return of_ages(data, [row.poll_age_s for row in data.every_worker if row.worker_id == data.state.item], "polls")


PANELS = (
    Panel(
        "workers",
        "State of every worker",
        "At its last poll. Learnt: what routers measured of its prefill, from first bytes, against the pool's setting. "
        "Credit: the share of predicted hit tokens that it delivers.",
        _workers,
        _polls,
    ),
    Panel(
        "leaving",
        "Leaving",
        "Workers that take nothing more. They may be stopped when nothing runs there any longer.",
        _leaving,
        _polls,
    ),
    Panel(
        "worker_now",
        "Last poll",
        "What the worker said of itself, and what routers learnt of it.",
        _worker_now,
        _of_one,
    ),
    Panel("worker_leaving", "Leaving", "", _worker_leaving, _of_one, "leaving"),
)
