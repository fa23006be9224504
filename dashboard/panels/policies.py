"""Panels of policies and their roll-out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from controlplane.policies.models import Rollout
from controlplane.rollouts.guard import Limits
from controlplane.rollouts.selectors import progress_of
from dashboard import policies
from dashboard.data import PageData
from dashboard.panels.base import Context, Panel

ROWS_MAX = 100
"""Of one list; a tenant in the state narrows it."""


def _watermarks(data: PageData) -> Context:
    return _listed(policies.rows(), data)


def _routing(data: PageData) -> Context:
    return _listed(policies.routing_rows(), data)


def _listed(rows: Sequence[policies.PolicyRow | policies.RoutingRow], data: PageData) -> Context:
    """Of the state's tenant and pool, those of the fleet besides; ROWS_MAX of them."""
    state = data.state
    shown = [row for row in rows if _concerns(row.scope_id, state.tenant, state.pool)]
    return {"rows": shown[:ROWS_MAX], "more": max(len(shown) - ROWS_MAX, 0), "query": state.across()}


def _concerns(scope_id: str, tenant: str, pool: str) -> bool:
    kind, _, name = scope_id.partition(":")
    if kind == "namespace":
        return tenant in ("", name.partition("/")[0])
    return kind == "global" or pool in ("", name)


_NO_FIGURES: Context = dict.fromkeys(("requests", "error_share", "hit_share", "ttft_p95_ms"))
_ARMS = {"candidate": "With the candidate", "others": "Others, or the time before"}


def _rollout_one(data: PageData) -> Context:
    """Of the roll-out that the page is about."""
    number = data.state.item
    row = Rollout.objects.filter(pk=int(number)).first() if number.isdigit() and len(number) <= 9 else None
    if row is None:
        return {"progress": None}
    verdict = row.verdict or {}
    return {
        "progress": progress_of(row, now=data.now),
        "stages": [
            (share, "done" if at < row.stage or row.state == row.State.COMPLETED else "now" if at == row.stage else "")
            for at, share in enumerate(row.stages)
        ],
        "stage_number": row.stage + 1,
        "stage_s": (data.now - row.stage_at).total_seconds(),
        "arms": [(words, _NO_FIGURES | (verdict.get(name) or {})) for name, words in _ARMS.items()],
        "limits": asdict(Limits()) | row.guards,
    }


def _rollout(data: PageData) -> Context:
    return {"rollout": policies.rollout(data.now)}


def _rollouts(data: PageData) -> Context:
    return {"rollouts": policies.rollouts(data.now), "query": data.state.across()}


PANELS = (
    Panel(
        "watermarks",
        "Watermark policies",
        "The narrowest scope wins: namespace, then pool, then global.",
        _watermarks,
    ),
    Panel(
        "rollouts",
        "Staged roll-outs",
        "A candidate on a share of the routers; guards compare it with the others and roll it back by themselves.",
        _rollouts,
    ),
    Panel(
        "routing",
        "Routing policies",
        "Values that replace a pool's settings (rule, virtual nodes, red line) or a namespace's (priority, objective).",
        _routing,
    ),
    Panel(
        "rollout_one",
        "Progress and guard",
        "Every few seconds the guard compares routers that have the candidate with the others; it rolls back by itself "
        "what is certainly worse, and goes on when a stage rests on enough requests.",
        _rollout_one,
    ),
    Panel("rollout", "Policy version of each router", "Which published version each router serves.", _rollout),
)
