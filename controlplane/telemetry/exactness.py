"""Pools that name a tokenizer and are matched by text all the same, workers that tokenise differently, and files that
changed: what routers say of it, as findings.

A router that is silent is unknown: it neither opens a finding nor closes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from controlplane.fleet.findings import Observation, observe, resolve
from controlplane.fleet.models import Finding, WorkerPool
from controlplane.telemetry.sources import RouterWord, last_words
from router.contract.telemetry import ExactState

POOL_KIND = "exact_mode_off"
WORKER_KIND = "parity_mismatch"
CHANGED_KIND = "tokenizer_changed"
HEARD_WITHIN = timedelta(seconds=15)
"""A router speaks every second; what one said before is no longer what it does."""
REASON_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Heard:
    """What one router says of its pools."""

    router: str
    pools: Mapping[str, ExactState]


def watch_exact_pools(now: datetime) -> None:
    """Opens what routers tell, closes what all of them that are heard no longer tell."""
    words = last_words(now)
    heard = [Heard(word.router, _states(word.state)) for word in words if now - word.last_at <= HEARD_WITHIN]
    wanted = set(WorkerPool.objects.exclude(tokenizer="").values_list("slug", flat=True))
    held = [*_pools_off(heard, wanted), *_workers_off(heard, wanted)]
    observe([*held, *_changed(words, wanted)], at=now)
    _close(held, {pool for each in heard for pool in each.pools}, wanted, now)


def _pools_off(heard: Iterable[Heard], wanted: set[str]) -> list[Observation]:
    found = {}
    for each in heard:
        for pool, state in each.pools.items():
            if pool in wanted and state.status.startswith("approximate"):
                reason = state.status.partition(": ")[2][:REASON_CHARS_MAX]
                message = f"Router {each.router} matches its prompts by text instead of tokens: {reason}."
                found[pool] = Observation(POOL_KIND, pool, message, Finding.Severity.WARNING)
    return list(found.values())


def _workers_off(heard: Iterable[Heard], wanted: set[str]) -> list[Observation]:
    found = {}
    for each in heard:
        for pool, state in each.pools.items():
            for worker, probe in state.different.items() if pool in wanted else ():
                if worker.startswith(f"{pool}/"):
                    message = f"It tokenises differently from the files of router {each.router}: {probe[:60]}."
                    found[worker] = Observation(WORKER_KIND, worker, message, Finding.Severity.WARNING)
    return list(found.values())


def _changed(words: Iterable[RouterWord], wanted: set[str]) -> list[Observation]:
    """Between a router's boots, and between routers: their keys of the same prompt differ then."""
    found = {}
    newest: dict[str, tuple[str, str]] = {}
    for word in words:
        before = _states(word.state_before)
        for pool, state in _states(word.state).items():
            version, older = state.files_version, before[pool].files_version if pool in before else ""
            if pool not in wanted or not version:
                continue
            other, other_version = newest.setdefault(pool, (word.router, version))
            if older and older != version:
                message = f"Router {word.router} reads tokenizer or chat template {version}, before {older}."
                found[pool] = Observation(CHANGED_KIND, pool, message, Finding.Severity.INFO)
            if other_version != version:
                message = f"Routers read different files: {other} {other_version}, {word.router} {version}."
                found[pool] = Observation(CHANGED_KIND, pool, message, Finding.Severity.WARNING)
    return list(found.values())


def _close(held: Iterable[Observation], spoken_of: set[str], wanted: set[str], now: datetime) -> None:
    """Of pools that a router speaks of, and of those that name no tokenizer any longer."""
    still = {(item.kind, item.subject) for item in held}
    open_ones = Finding.objects.filter(kind__in=(POOL_KIND, WORKER_KIND), resolved_at=None)
    for kind, subject in open_ones.values_list("kind", "subject"):
        pool = subject.partition("/")[0]
        if (kind, subject) not in still and (pool in spoken_of or pool not in wanted):
            resolve([subject], [kind], at=now)


def _states(router_state: Mapping[str, object] | None) -> dict[str, ExactState]:
    """Of a row that an older or a broken router wrote: none."""
    try:
        return msgspec.convert((router_state or {}).get("exact", {}), dict[str, ExactState])
    except msgspec.ValidationError:
        return {}
