"""The levers of a question: checked, named in words, and as the simulator takes them. Pure: no database.

A scenario is a mapping of the LEVERS that differ from the fleet as it is. `more_workers` is relative here and absolute
in the simulator's question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.errors import FieldError, Invalid

Lever = int | float | bool | str
Changes = Mapping[str, Any]
"""Lever → value, and `name` where the scenario has one of its own."""

AS_IT_IS = "as it is"
SCENARIOS_MAX = 8
NAME_MAX = 80
WORKERS_MAX = 256
POLICIES = {
    "tidemark": "Tidemark",
    "ring_watermark": "consistent hashing",
    "least_outstanding": "least outstanding requests",
    "round_robin": "round robin",
    "power_of_two": "the freer of two",
    "cache_aware": "cache-aware threshold",
}
"""Rules that can be simulated → words. The first four are a pool's; the others are those of other routers."""
RULE_OF_A_POOL = {"ring": "ring_watermark"}
"""`WorkerPool.routing` → rule of the simulator, where they are not the same word."""

LEVERS = (
    "more_workers", "kv_capacity_factor", "low", "high", "policy", "template_fixed", "shared_tier_gib", "load_factor",
)  # fmt: skip
OF_A_TENANT = frozenset({"template_fixed", "load_factor"})
"""What a tenant can change itself. The others, and what the fleet has of them, are the fleet's."""
_BOUNDS = {
    "more_workers": (-WORKERS_MAX, WORKERS_MAX),
    "kv_capacity_factor": (0.1, 10.0),
    "low": (0.05, 1.0),
    "high": (0.05, 1.0),
    "shared_tier_gib": (1.0, 100_000.0),
    "load_factor": (0.1, 10.0),
}


@dataclass(frozen=True, slots=True)
class Standing:
    """The fleet as it is, as far as scenarios differ from it."""

    workers: int
    low: float
    high: float
    policy: str


def asked_of(scenarios: Sequence[Changes], standing: Standing) -> list[dict[str, Any]]:
    """The simulator's scenarios, "as it is" first. Raises Invalid naming the scenario's field."""
    if not 1 <= len(scenarios) <= SCENARIOS_MAX:
        raise Invalid.field("scenarios", f"Name from 1 to {SCENARIOS_MAX} scenarios.")
    found = [{"name": AS_IT_IS}, *(_asked(changes, standing, at) for at, changes in enumerate(scenarios))]
    names = [scenario["name"] for scenario in found]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise Invalid.field("scenarios", f"Two scenarios are called {name!r}.")
    return found


def of_policy(kind: str, values: Changes) -> dict[str, Any] | None:
    """What a policy would change, as a scenario; None where nothing of it is simulated."""
    if kind == "watermark":
        return {name: values[name] for name in ("low", "high")}
    rule = values.get("routing")
    return {"policy": RULE_OF_A_POOL.get(rule, rule)} if rule else None


def in_words(changes: Changes) -> str:
    """`2 more workers, watermarks 55–75 %`."""
    return ", ".join(_words(changes))[:NAME_MAX]


def _asked(changes: Changes, standing: Standing, at: int) -> dict[str, Any]:
    _check(changes, standing, at)
    asked: dict[str, Any] = {"name": changes.get("name") or in_words(changes)}
    for lever in LEVERS:
        if changes.get(lever) is not None and lever != "more_workers":
            asked[lever] = changes[lever]
    if changes.get("more_workers"):
        asked["workers"] = standing.workers + changes["more_workers"]
    return asked


def _check(changes: Changes, standing: Standing, at: int) -> None:
    def refuse(lever: str, message: str) -> None:
        raise Invalid(message, errors=[FieldError(field=f"scenarios.{at}.{lever}", message=message)])

    for lever, (least, most) in _BOUNDS.items():
        value = changes.get(lever)
        if value is not None and not least <= value <= most:
            refuse(lever, f"Between {least:g} and {most:g}.")
    if not any(changes.get(lever) for lever in LEVERS):
        raise Invalid.field("scenarios", "A scenario changes at least one thing.")
    if changes.get("more_workers") and not 1 <= standing.workers + changes["more_workers"] <= WORKERS_MAX:
        refuse("more_workers", f"The pool has {standing.workers}: leave from 1 to {WORKERS_MAX} workers.")
    low, high = changes.get("low") or standing.low, changes.get("high") or standing.high
    if low >= high:
        refuse("low" if changes.get("low") else "high", f"The low watermark must be below the high one ({high:.0%}).")
    if changes.get("policy") and changes["policy"] not in POLICIES:
        refuse("policy", f"Name one of: {', '.join(POLICIES)}.")


def _words(changes: Changes) -> list[str]:
    words = []
    more = changes.get("more_workers")
    if more:
        words.append(f"{abs(more)} {'more' if more > 0 else 'fewer'} worker{'' if abs(more) == 1 else 's'}")
    if changes.get("kv_capacity_factor"):
        words.append(f"KV × {changes['kv_capacity_factor']:g}")
    low, high = changes.get("low"), changes.get("high")
    if low and high:
        words.append(f"watermarks {low * 100:g}–{high * 100:g} %")
    elif low or high:
        words.append(f"{'low' if low else 'high'} watermark {(low or high or 0) * 100:g} %")
    if changes.get("policy"):
        words.append(POLICIES.get(changes["policy"], str(changes["policy"])))
    if changes.get("template_fixed"):
        words.append("changing text moved behind the prefix")
    if changes.get("shared_tier_gib"):
        words.append(f"{changes['shared_tier_gib']:g} GiB shared tier")
    if changes.get("load_factor"):
        words.append(f"load × {changes['load_factor']:g}")
    return words
