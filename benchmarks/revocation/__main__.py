"""`python -m benchmarks.revocation`: the figures of revocation, as a table or with `--json`.

| phase | what happens | bar |
| --- | --- | --- |
| healthy | keys are revoked under load, every way open | p99 of the first refusal ≤ 200 ms |
| lost | no push and no message arrives: the poll alone | p99 ≤ 2 s |
| restarted | a router is killed, a key revoked, the router started | 0 requests admitted after its start |
| racing | clients race it over kept and pipelined connections | 0 of 100,000 admitted after the acknowledgement |
| cut_off | control plane and Valkey stop for a router | namespaces that deny are refused ≤ 60 s, others served |

Times run from the moment before the revoking call to the moment a client of that router has its first refusal in hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
import uvloop

from benchmarks.proxybench.kit import BenchError
from benchmarks.revocation.fleet import Fleet, running, stop
from benchmarks.revocation.racing import Asked, Racer, admitted_after, finish, refused_at, start_racer

HEALTHY_P99_MS = 200.0
LOST_P99_MS = 2000.0
CUT_OFF_S = 60.0
RACING_REQUESTS = 100_000
SETTLE_S = 0.15
"""Clients ask for so long before the revocation, and after the last router refused."""
PROBE_PAUSE_S = 0.005
"""A request and its answer take about 1 ms of the machine: closer ones would measure the clients."""
LOAD_PAUSE_S = 0.01
LOST_AT_ONCE = 5
"""Keys that are revoked within the same two seconds."""
GIVE_UP_S = 10.0

Figures = dict[str, Any]
"""Of one phase; `ok` says whether its bar is met."""


@dataclass(frozen=True, slots=True)
class Sizes:
    healthy: int = 100
    lost: int = 100
    restarted: int = 3
    racing: int = RACING_REQUESTS


SHORT = Sizes(healthy=5, lost=4, restarted=1, racing=3000)


async def healthy(fleet: Fleet, sizes: Sizes) -> Figures:
    load = await _load(fleet)
    first = (await _revoke_one(fleet))[0]
    ms = [taken for _ in range(sizes.healthy) for taken in (await _revoke_one(fleet))[0]]
    await finish(load)
    figures = _percentiles(ms)
    # The first change in a web server's life also loads code and opens connections.
    return {
        **figures,
        "first_ms": round(max(first), 1),
        "bar_p99_ms": HEALTHY_P99_MS,
        "ok": figures["p99_ms"] <= HEALTHY_P99_MS,
    }


async def lost(fleet: Fleet, sizes: Sizes) -> Figures:
    fleet.restart_routers(pushes=False)
    load = await _load(fleet)
    rng = random.Random(1)
    ms: list[float] = []
    for start in range(0, sizes.lost, LOST_AT_ONCE):
        pauses = [rng.uniform(0, 2.0) for _ in range(min(LOST_AT_ONCE, sizes.lost - start))]
        for taken, _ in await asyncio.gather(*(_revoke_one(fleet, pause_s=pause) for pause in pauses)):
            ms += taken
    await finish(load)
    figures = _percentiles(ms)
    return {**figures, "bar_p99_ms": LOST_P99_MS, "ok": figures["p99_ms"] <= LOST_P99_MS}


async def restarted(fleet: Fleet, sizes: Sizes) -> Figures:
    router, admitted, asked, seconds = fleet.routers[0], 0, 0, []
    for _ in range(sizes.restarted):
        key = fleet.take_key()
        stop(router.process, signal.SIGKILL)
        async with fleet.client() as client:
            await _revoke(client, key)
        began = time.monotonic()
        starting = asyncio.create_task(asyncio.to_thread(fleet.start_router, router))
        statuses = await _statuses_while(starting, router.port, key)
        seconds.append(time.monotonic() - began)
        asked += len(statuses)
        admitted += sum(status == 200 for status in statuses)
    return {"restarts": sizes.restarted, "asked": asked, "admitted": admitted, "ready_s_max": round(max(seconds), 2),
            "ok": admitted == 0 and asked > 0}  # fmt: skip


async def racing(fleet: Fleet, sizes: Sizes) -> Figures:
    requests = admitted = rounds = late = 0
    while requests < sizes.racing:
        _, (asked, acked_at) = await _revoke_one(fleet, racers=_racers)
        requests += sum(len(one.statuses) for one in asked)
        late += sum(sent > acked_at.get(one.port, float("inf")) for one in asked for sent in one.sent)
        admitted += admitted_after(asked, acked_at)
        rounds += 1
    return {"requests": requests, "rounds": rounds, "sent_after_ack": late, "admitted_after_ack": admitted,
            "ok": admitted == 0 and late > 0}  # fmt: skip


async def cut_off(fleet: Fleet, sizes: Sizes) -> Figures:
    """The control plane is stopped, not ended: its connections stay open and silent."""
    assert fleet.web is not None
    router = fleet.routers[0]
    racers = [await start_racer(router.port, key, pause_s=0.1) for key in (fleet.denies, fleet.steady)]
    stop(fleet.valkey, signal.SIGKILL)
    fleet.web.send_signal(signal.SIGSTOP)
    began, refused = time.time(), None
    while refused is None and time.time() - began < CUT_OFF_S + 10:
        await asyncio.sleep(0.1)
        closed = racers[0].asked
        refused = next((at for at, status in zip(closed.answered, closed.statuses, strict=True) if status == 503), None)
    asked = await finish(racers)
    fleet.web.send_signal(signal.SIGCONT)
    others = all(status == 200 for status in asked[1].statuses)
    seconds = None if refused is None else round(refused - began, 1)
    return {"denied_after_s": seconds, "bar_s": CUT_OFF_S, "others_served": others,
            "ok": seconds is not None and seconds <= CUT_OFF_S and others}  # fmt: skip


PHASES: dict[str, Callable[[Fleet, Sizes], Coroutine[Any, Any, Figures]]] = {
    "healthy": healthy,
    "racing": racing,
    "restarted": restarted,
    "lost": lost,
    "cut_off": cut_off,
}
"""In this order: the last two leave the fleet without pushes."""

Racers = Callable[[Fleet, str], Coroutine[Any, Any, list[Racer]]]


async def _probes(fleet: Fleet, key: str) -> list[Racer]:
    return [await start_racer(router.port, key, pause_s=PROBE_PAUSE_S) for router in fleet.routers]


async def _racers(fleet: Fleet, key: str) -> list[Racer]:
    """Half of them ask when they have their answer, half hold eight requests under way."""
    depths = (1, 1, 1, 1, 8, 8, 8, 8)
    return [await start_racer(router.port, key, depth=depth) for router in fleet.routers for depth in depths]


async def _load(fleet: Fleet) -> list[Racer]:
    """Others' requests, about 200 a second on each router."""
    return [
        await start_racer(router.port, fleet.steady, pause_s=LOAD_PAUSE_S) for router in fleet.routers for _ in range(2)
    ]


async def _revoke_one(
    fleet: Fleet, *, pause_s: float = 0.0, racers: Racers = _probes
) -> tuple[list[float], tuple[list[Asked], dict[int, float]]]:
    """Milliseconds to the first refusal on each router; what was asked, and when each router acknowledged."""
    await asyncio.sleep(pause_s)
    key = fleet.take_key()
    running_racers = await racers(fleet, key)
    await asyncio.sleep(SETTLE_S)
    async with fleet.client() as client:
        began = time.time()
        revocation = await _revoke(client, key)
        refused = await _until_refused(fleet, running_racers)
        await asyncio.sleep(SETTLE_S)
        asked = await finish(running_racers)
        shown = (await client.get(f"/api/v1/revocations/{revocation['epoch']}")).json()
    ports = {router.name: router.port for router in fleet.routers}
    acked_at = {
        ports[ack["router"]]: datetime.fromisoformat(ack["at"]).timestamp() for ack in shown["routers"] if ack["at"]
    }
    return [(at - began) * 1000 for at in refused], (asked, acked_at)


async def _revoke(client: httpx.AsyncClient, key: str) -> Figures:
    answer = await client.post("/api/v1/revocations", json={"kind": "key", "subject": key.split("_")[1]})
    if answer.status_code != 201:
        raise BenchError(f"the revocation was refused: {answer.text[:300]}")
    revocation: Figures = answer.json()
    return revocation


async def _until_refused(fleet: Fleet, racers: list[Racer]) -> list[float]:
    give_up_at = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_at:
        found = [refused_at([racer.asked for racer in racers], router.port) for router in fleet.routers]
        if all(at is not None for at in found):
            return [at for at in found if at is not None]
        await asyncio.sleep(0.01)
    seen = {f"{racer.asked.port}": Counter(racer.asked.statuses).most_common(4) for racer in racers}
    raise BenchError(f"no refusal on every router after {GIVE_UP_S:.0f} s; answers by port: {seen}")


async def _statuses_while(task: asyncio.Task[None], port: int, key: str) -> list[int]:
    """Of requests sent as soon as the router takes connections, until half a second after it is ready."""
    statuses: list[int] = []
    end_at = float("inf")
    while time.monotonic() < end_at:
        if task.done() and end_at == float("inf"):
            task.result()
            end_at = time.monotonic() + 0.5
        try:
            racer = await start_racer(port, key, pause_s=PROBE_PAUSE_S)
        except OSError:
            await asyncio.sleep(0.002)
            continue
        await asyncio.sleep(0.05)
        statuses += (await finish([racer]))[0].statuses
    return statuses


def _percentiles(ms: Sequence[float]) -> Figures:
    ordered = sorted(ms)
    at = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in
          (("p50_ms", 0.5), ("p99_ms", 0.99))}  # fmt: skip
    return {"samples": len(ordered), **{name: round(value, 1) for name, value in at.items()},
            "max_ms": round(ordered[-1], 1)}  # fmt: skip


async def measure(fleet: Fleet, sizes: Sizes, phases: Sequence[str]) -> dict[str, Figures]:
    return {name: await PHASES[name](fleet, sizes) for name in PHASES if name in phases}


def keys_needed(sizes: Sizes) -> int:
    """A round of racers asks some 800 times and more."""
    return sizes.healthy + sizes.lost + sizes.restarted + sizes.racing // 400 + 20


def main() -> int:
    """0 when every bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--short", action="store_true", help="a few revocations of each kind")
    parser.add_argument("--only", default=",".join(PHASES), help="phases, separated by commas")
    parser.add_argument("--database-url", default="", help="an empty PostgreSQL database; SQLite without one")
    arguments = parser.parse_args()
    sizes = SHORT if arguments.short else Sizes()
    with running(keys=keys_needed(sizes), database_url=arguments.database_url) as fleet:
        figures = uvloop.run(measure(fleet, sizes, arguments.only.split(",")))
    database = "postgresql" if arguments.database_url else "sqlite"
    report = {"phases": figures, "routers": 2, "database": database, "python": platform.python_version(),
              "ok": all(phase["ok"] for phase in figures.values())}  # fmt: skip
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        for name, phase in figures.items():
            print(f"{name:10} {'ok  ' if phase['ok'] else 'MISS'} " + "  ".join(f"{k} {v}" for k, v in phase.items()))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
