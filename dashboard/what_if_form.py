"""The form of a question: texts become scenarios, one for each lever that is filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest

from controlplane.errors import Invalid
from controlplane.what_if.scenarios import OF_A_TENANT
from controlplane.what_if.services import SEEDS_DEFAULT
from dashboard.forms import number, posted, whole
from dashboard.scope import PageState

SPANS = {"15": "last 15 min", "60": "last hour", "360": "last 6 h", "1440": "last 24 h", "2880": "last 2 days"}
"""Minutes → words."""
SHOWN = "shown"
"""The range of the page's bar, where it names its end."""
SEEDS = ("1", "3", "5")
LEVERS = (
    "more_workers", "fewer_workers", "kv_capacity_factor", "low", "high", "policy", "template_fixed",
    "shared_tier_gib", "load_factor",
)  # fmt: skip
FIELDS = (
    "pool", "tenant", "namespace", "span", "together", "seeds", "good_s", "gpu_price_per_h", "gpu_currency",
    "gpus_per_worker", *LEVERS,
)  # fmt: skip
USUAL = {"span": "60", "seeds": str(SEEDS_DEFAULT), "gpu_currency": "EUR", "gpus_per_worker": "1"}
USUAL_LEVERS = {"more_workers": "1", "fewer_workers": "1", "load_factor": "1.3"}
"""Of a form that nobody filled in beforehand. A tenant's: the load alone."""
PERCENT = (5, 100)


@dataclass(frozen=True, slots=True)
class Asked:
    values: dict[str, Any]
    """What `services.ask` takes."""
    fields: dict[str, str]
    """The service's names of fields → the form's."""


def typed(request: HttpRequest) -> dict[str, str]:
    return posted(request, FIELDS)


def prefilled(query: Mapping[str, str], state: PageState, *, sees_fleet: bool) -> dict[str, str]:
    """The form as it opens: what the address names, else the usual levers."""
    named = {name: query[name].replace("\x00", "").strip()[:100] for name in FIELDS if query.get(name)}
    values = USUAL | {"pool": state.pool, "tenant": state.tenant, "namespace": state.ns} | named
    if not state.live and "span" not in named:
        values["span"] = SHOWN
    if not any(name in named for name in LEVERS):
        values |= {name: text for name, text in USUAL_LEVERS.items() if sees_fleet or name in OF_A_TENANT}
    return values


def query_of(scope: str, scenario: Mapping[str, Any] | None) -> str:
    """The form's address query for a policy's proposed values; "" where nothing of them is simulated."""
    if scenario is None:
        return ""
    kind, _, name = scope.partition(":")
    where = {"pool": {"pool": name}, "namespace": {"tenant": name.partition("/")[0], "namespace": name}}.get(kind, {})
    levers = {lever: f"{value * 100:g}" if lever in ("low", "high") else value for lever, value in scenario.items()}
    return urlencode(where | levers)


def asked_in(form: Mapping[str, str], state: PageState, *, now: datetime) -> Asked:
    """Raises Invalid naming the form's field."""
    scenarios, fields = _scenarios(form)
    if not scenarios:
        raise Invalid.field("form", "Fill in at least one change: without one there is nothing to compare.")
    from_at, to_at = _range(form, state, now)
    values: dict[str, Any] = {
        "pool": form["pool"], "tenant": form["tenant"], "namespace": form["namespace"], "from_at": from_at,
        "to_at": to_at, "scenarios": scenarios, "good_s": number(form["good_s"], "good_s"),
        "gpu_price_per_h": number(form["gpu_price_per_h"], "gpu_price_per_h"),
    }  # fmt: skip
    for name in ("seeds", "gpus_per_worker"):
        if (value := whole(form[name], name)) is not None:
            values[name] = value
    if form["gpu_currency"]:
        values["gpu_currency"] = form["gpu_currency"]
    return Asked(values, fields)


def _range(form: Mapping[str, str], state: PageState, now: datetime) -> tuple[datetime, datetime]:
    if form["span"] == SHOWN:
        shown = state.scope(now)
        return shown.from_, shown.to
    if form["span"] not in SPANS:
        raise Invalid.field("span", "Choose a range.")
    return now - timedelta(minutes=int(form["span"])), now


def _scenarios(form: Mapping[str, str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One a lever, and where asked for all of them at once, fewer workers left out."""
    found: list[dict[str, Any]] = []
    fields: dict[str, str] = {}
    for name, changes in _levers(form):
        fields |= {f"scenarios.{len(found)}.{lever}": lever if lever in LEVERS and len(changes) > 1 else name
                   for lever in changes}  # fmt: skip
        found.append(changes)
    together: dict[str, Any] = {}
    for changes in found:
        together |= {lever: value for lever, value in changes.items() if lever != "more_workers" or value > 0}
    if form["together"] and len(found) > 1 and together not in found:
        found.append({"name": "all of these at once", **together})
    return found, fields


def _levers(form: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """(field of the form, changes)."""
    found: list[tuple[str, dict[str, Any]]] = []
    if more := whole(form["more_workers"], "more_workers"):
        found.append(("more_workers", {"more_workers": more}))
    if fewer := whole(form["fewer_workers"], "fewer_workers"):
        found.append(("fewer_workers", {"more_workers": -fewer}))
    if factor := number(form["kv_capacity_factor"], "kv_capacity_factor"):
        found.append(("kv_capacity_factor", {"kv_capacity_factor": factor}))
    marks = {name: share for name in ("low", "high") if (share := _share(form[name], name)) is not None}
    if marks:
        found.append((next(iter(marks)), marks))
    if form["policy"]:
        found.append(("policy", {"policy": form["policy"]}))
    if form["template_fixed"]:
        found.append(("template_fixed", {"template_fixed": True}))
    if tier := number(form["shared_tier_gib"], "shared_tier_gib"):
        found.append(("shared_tier_gib", {"shared_tier_gib": tier}))
    if load := number(form["load_factor"], "load_factor"):
        found.append(("load_factor", {"load_factor": load}))
    return found


def _share(text: str, name: str) -> float | None:
    percent = number(text.removesuffix("%").strip(), name)
    if percent is not None and not PERCENT[0] <= percent <= PERCENT[1]:
        raise Invalid.field(name, f"Between {PERCENT[0]} % and {PERCENT[1]} %.")
    return None if percent is None else percent / 100
