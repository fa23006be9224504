"""The what-if of a report over the pool's recorded traffic, in the shape that `what_if` gives for synthetic traffic."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from controlplane.telemetry.recorded import recorded_extent, write_recorded
from controlplane.telemetry.windows import Scope

Figures = dict[str, Any]
Ask = Callable[[list[str], Figures], Figures | str]
"""The simulator's last line, or why there is none."""
REQUESTS_MIN = 500
"""Fewer recorded ones are too few for a p95."""
REQUESTS_MAX = 2_500
"""The newest of the hour: six scenarios on two seeds take about half a minute."""
SEEDS = (1, 2)
UNCHANGED = ("workers", "low", "high", "broken")


def replayed(pool: str, start: datetime, question: Figures, ask: Ask) -> Figures | None:
    """None where the hour was not recorded, or the simulator could not say. `question`: the synthetic one."""
    scope = Scope(from_=start, to=start + timedelta(hours=1), pool=pool)
    if recorded_extent(scope).requests < REQUESTS_MIN:
        return None
    with TemporaryDirectory(prefix="tidemark-report-") as folder:
        path = Path(folder) / "recorded.jsonl"
        requests = write_recorded(scope, path, limit=REQUESTS_MAX)
        said = ask(["simulator", "what-if", "--trace", str(path)], _question(question))
    if isinstance(said, str) or said["answer"]["error"]["hit_token_share"] is None:
        return None
    answer = said["answer"]
    return {
        "scenarios": answer["scenarios"],
        "left_out": [],
        "error": abs(answer["error"]["hit_token_share"]),
        "seeds": len(answer["seeds"]),
        "slice": answer["slice_workers"],
        "recorded": {"requests": requests, "scaled": answer["sampled"]["scaled"]},
    }


def _question(synthetic: Figures) -> Figures:
    base = synthetic["scenarios"][0]
    return {
        "workers": base["workers"],
        "watermark": {"low": base["low"], "high": base["high"]},
        "seeds": SEEDS,
        **{name: synthetic[name] for name in ("kv_capacity_tokens", "prefill_tokens_per_s", "good_s")},
        "scenarios": [_scenario(scenario, base) for scenario in synthetic["scenarios"]],
    }


def _scenario(scenario: Figures, base: Figures) -> Figures:
    changed = {name: scenario[name] for name in UNCHANGED if scenario[name] != base[name]}
    fixed = changed.pop("broken", None) is not None
    return {"name": scenario["name"], **changed, **({"template_fixed": True} if fixed else {})}


def last_line(output: bytes) -> Figures:
    lines = output.splitlines()
    found: Figures = json.loads(lines[-1]) if lines else {}
    return found
