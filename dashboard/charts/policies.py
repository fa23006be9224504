"""Figures of a dry run: what each worker would get, before and after."""

from __future__ import annotations

from controlplane.rollouts.dry_run import WorkerLoad
from dashboard.charts.base import AMBER, GREY, Figure, figure

WORKERS_SHOWN = 40
"""More bars than this are no longer told apart: those that change most are shown."""


def load_figure(workers: list[WorkerLoad]) -> Figure:
    """Uncached prompt tokens by worker, in force beside proposed."""
    changed = sorted(workers, key=lambda row: -abs(row.uncached_tokens_after - row.uncached_tokens_before))
    shown = sorted(changed[:WORKERS_SHOWN], key=lambda row: row.worker)
    names = [row.worker for row in shown]
    before = _bars("In force", names, [row.uncached_tokens_before for row in shown], colour=GREY, pattern="")
    after = _bars("Proposed", names, [row.uncached_tokens_after for row in shown], colour=AMBER, pattern="/")
    axis = {"type": "category", "automargin": True}
    return figure([before, after], y_title="uncached tokens", barmode="group", xaxis=axis, hovermode="x")


def _bars(name: str, x: list[str], y: list[int], *, colour: str, pattern: str) -> Figure:
    marker = {"color": colour, "pattern": {"shape": pattern, "solidity": 0.25, "size": 5}}
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": marker, "hovertemplate": "%{y:.3s} tokens"}
