"""Exact mode: which pools' prompts are read as their workers hash them, and whose KV events are followed for that.

    exact = ExactMode(folder=…, index_bytes_max=…, …)      # inside a running loop
    exact.follow(snapshot)                                  # level-triggered, on every snapshot
    found = exact.read(grant, fields, kind="chat")          # a prefix, or a call to await for it, or None
    exact.prompt(grant, prefix)                             # with what each worker holds at this moment
    exact.answered(call); exact.state(); await exact.close()

Off for pools that name no tokenizer: they cost nothing here. Nothing is opened before a pool names one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, time
from typing import Any

import httpx
import structlog

from router.adapters.exact_pool import CheckParity, ExactPool, Later, PoolPlan
from router.adapters.kv_events import EventEndpoint, KvEventFeeds
from router.adapters.parity import ParityReport, check_parity
from router.adapters.tokenizer import ExactTokenizer
from router.call import Call
from router.contract.ids import PoolId, WorkerId
from router.contract.secrets import FleetKey
from router.contract.snapshot import PolicySnapshot, PoolPolicy, WorkerEntry
from router.contract.telemetry import ExactState
from router.core.exact.block_index import BlockIndex, Holder
from router.core.exact.chains import ExactPrefix
from router.core.exact.event_stream import StreamReport
from router.core.model import ExactPrompt, Grant
from router.core.proofs import Proofs

log = structlog.get_logger("router.exact")

_Workers = Mapping[WorkerId, WorkerEntry]
_Page = dict[str, Any]  # Any: a page for people, of many kinds of values


class ExactMode:
    """Implements `partners.ExactPrompts`. `lost` is told of each worker whose cache is not what it was."""

    def __init__(
        self,
        *,
        folder: Path | None,
        index_bytes_max: int,
        fleet_key: FleetKey,
        worker_api_key: str,
        proofs: Proofs,
        lost: Callable[[WorkerId], None],
        clock: Callable[[], float] = monotonic,
        check: CheckParity | None = None,
    ) -> None:
        self.pools: dict[PoolId, ExactPool] = {}
        """The pools in exact mode at this moment."""
        self._folder = folder
        self._secret = fleet_key.subkey("exact/v1")
        self._authorization = {"authorization": f"Bearer {worker_api_key}"} if worker_api_key else {}
        self._proofs = proofs
        self._lost = lost
        self._clock = clock
        self._check = check or self._ask_worker
        self._index = BlockIndex(bytes_max=index_bytes_max)
        self._kept: dict[PoolId, ExactPool] = {}
        """Every pool with a plan."""
        self._refused: dict[PoolId, str] = {}
        """Pools that name a tokenizer and cannot be exact, and why."""
        self._said: dict[PoolId, str] = {}
        self._endpoints: dict[WorkerId, EventEndpoint] = {}
        self._feeds: KvEventFeeds | None = None
        self._client: httpx.AsyncClient | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def follow(self, snapshot: PolicySnapshot) -> None:
        """Take a snapshot: begin, keep or end each pool's exact mode."""
        by_pool: dict[PoolId, dict[WorkerId, WorkerEntry]] = {}
        for worker, entry in snapshot.workers.items():
            if snapshot.pools[entry.pool].tokenizer if entry.pool in snapshot.pools else "":
                by_pool.setdefault(entry.pool, {})[worker] = entry
        self._endpoints = {}
        plans: dict[PoolId, PoolPlan] = {}
        self._refused = {}
        for pool, policy in snapshot.pools.items():
            if policy.tokenizer:
                plan = self._plan(policy, by_pool.get(pool, {}))
                if isinstance(plan, str):
                    self._refused[pool] = plan
                else:
                    plans[pool] = plan
                    self._endpoints |= _endpoints(policy, by_pool[pool])
        for pool in list(self._kept):
            if pool not in plans or self._kept[pool].plan.source != plans[pool].source:
                self._end(pool)
        for pool, plan in plans.items():
            self._begin_or_keep(pool, plan)
        self._follow_events()
        self._say_states()

    def read(self, grant: Grant, fields: Mapping[str, Any], *, kind: str) -> ExactPrefix | Later | None:
        """The prompt of a request, or a call to await for it; None where it cannot be had, or the pool is not exact."""
        pool = self.pools.get(grant.pool)
        return None if pool is None else pool.read(grant, fields, kind=kind)

    def prompt(self, grant: Grant, prefix: ExactPrefix) -> ExactPrompt | None:
        """What each worker holds of it at this moment; None when no worker's cache is known."""
        pool = self.pools.get(grant.pool)
        return None if pool is None else pool.prompt(prefix)

    def answered(self, call: Call) -> None:
        """What the worker delivered is held against what its events let expect (A13, C15)."""
        decision, outcome, feeds = call.decision, call.outcome, self._feeds
        if decision is None or feeds is None or not outcome.ok:
            return
        if outcome.prompt_tokens is None or outcome.cached_tokens is None:
            return
        worker, exact = decision.worker, decision.request.exact
        if decision.source is not None:
            # Its cached tokens are those of the worker that it pulled from, which computed the others.
            worker = decision.source.worker
        computed = max(outcome.prompt_tokens - outcome.cached_tokens, 0)
        feeds.note_answer(worker, computed_tokens=computed, sent_at=call.received_at)
        if exact is not None and worker not in exact.unknown:
            delivered = outcome.cached_tokens
            feeds.judge(worker, predicted_tokens=decision.promised_tokens(delivered), delivered_tokens=delivered)

    def statuses(self) -> dict[PoolId, str]:
        """`exact`, `loading` or `approximate: <reason>` of each pool that names a tokenizer."""
        found = {pool: f"approximate: {why}" for pool, why in self._refused.items()}
        for pool, kept in self._kept.items():
            found[pool] = kept.status
            if found[pool] == "exact" and not kept.exact_workers():
                found[pool] = "approximate: no worker's KV events are complete"
        return found

    def told(self) -> dict[str, ExactState]:
        """For telemetry: the same pools, with the version of their files, who tokenises differently, and whose cache is
        not known."""
        reports = {report.holder: report for report in self._feeds.reports()} if self._feeds is not None else {}
        found = {}
        for pool, status in self.statuses().items():
            kept = self._kept.get(pool)
            found[str(pool)] = (
                ExactState(status)
                if kept is None
                else ExactState(status, kept.files_version, kept.different(), _by_text(kept, reports))
            )
        return found

    def state(self) -> _Page:
        """For the admin port: each pool, and each of its workers."""
        reports = {report.holder: report for report in self._feeds.reports()} if self._feeds is not None else {}
        statuses = self.statuses()
        return {
            "index_blocks": self._index.blocks,
            "index_bytes": self._index.size_bytes,
            "pools": {
                pool: {"status": status} | (_pool_page(self._kept[pool], reports) if pool in self._kept else {})
                for pool, status in statuses.items()
            },
        }

    async def close(self) -> None:
        for pool in list(self._kept):
            self._end(pool)
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._feeds is not None:
            await self._feeds.close()
        if self._client is not None:
            await self._client.aclose()

    # pools

    def _plan(self, policy: PoolPolicy, workers: _Workers) -> PoolPlan | str:
        """The plan, or why there is none."""
        if self._folder is None:
            return "TIDEMARK_ROUTER_TOKENIZER_DIR is not set"
        if Path(policy.tokenizer).name != policy.tokenizer or policy.tokenizer in (".", ".."):
            return "the tokenizer must name one folder"
        if not policy.models:
            return "the pool serves no model"
        algorithms = {entry.hash_algorithm for entry in workers.values() if entry.hash_algorithm}
        if len(algorithms) != 1:
            return "the workers' block hashes differ" if algorithms else "no worker has told its block hash"
        return PoolPlan(
            tokenizer=policy.tokenizer,
            algorithm=algorithms.pop(),
            block_size=policy.block_size,
            model=policy.models[0],
            members=frozenset(workers),
            urls={worker: entry.url for worker, entry in workers.items() if entry.hash_algorithm and entry.kv_events},
        )

    def _begin_or_keep(self, pool: PoolId, plan: PoolPlan) -> None:
        kept = self._kept.get(pool)
        if kept is not None:
            kept.take(plan)
            return
        assert self._folder is not None
        self._kept[pool] = ExactPool(
            pool,
            plan,
            folder=self._folder,
            secret=self._secret,
            index=self._index,
            check=self._check,
            clock=self._clock,
            changed=self._pool_changed,
        )

    def _end(self, pool: PoolId) -> None:
        kept = self._kept.pop(pool)
        self.pools.pop(pool, None)
        closing = asyncio.get_running_loop().create_task(kept.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _pool_changed(self, kept: ExactPool) -> None:
        if self._kept.get(kept.pool) is not kept:
            return
        if kept.status == "exact":
            self.pools[kept.pool] = kept
        else:
            self.pools.pop(kept.pool, None)
        self._follow_events()
        self._say_states()

    def _say_states(self) -> None:
        """Once for each change."""
        states = {pool: kept.status for pool, kept in self._kept.items()}
        states |= {pool: f"approximate: {why}" for pool, why in self._refused.items()}
        for pool, status in states.items():
            if self._said.get(pool) != status:
                level = log.warning if status.startswith("approximate") else log.info
                level("pool_mode", pool=pool, status=status)
        self._said = states

    # workers

    def _follow_events(self) -> None:
        """Of the pools that are or may become exact: events of others would be work for nothing."""
        wanted = [
            self._endpoints[worker]
            for kept in self._kept.values()
            if kept.loaded and not kept.differs
            for worker in kept.plan.urls
            if worker in self._endpoints
        ]
        if self._feeds is None:
            if not wanted:
                return
            self._feeds = KvEventFeeds(self._index, clock=self._clock, lost=self._worker_lost)
        self._feeds.follow(wanted)

    def _worker_lost(self, worker: WorkerId) -> None:
        for kept in self._kept.values():
            if worker in kept.plan.members:
                kept.distrust(worker)
        self._lost(worker)

    async def _ask_worker(self, url: str, tokenizer: ExactTokenizer, model: str) -> ParityReport:
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False)
        pools = [pool for pool, kept in self._kept.items() if url in kept.plan.urls.values()]
        proof = self._proofs.unsalted(pools[0], now=time()) if pools else {}
        return await check_parity(self._client, url, tokenizer, model=model, headers=self._authorization | proof)


def _endpoints(policy: PoolPolicy, workers: _Workers) -> dict[WorkerId, EventEndpoint]:
    found = {}
    for worker, entry in workers.items():
        capacity_tokens = entry.kv_capacity_tokens
        if entry.kv_events:
            found[worker] = EventEndpoint(
                worker,
                entry.kv_events,
                entry.kv_replay,
                block_size_tokens=policy.block_size,
                capacity_blocks=None if capacity_tokens is None else capacity_tokens // policy.block_size,
            )
    return found


def _by_text(kept: ExactPool, reports: Mapping[Holder, StreamReport]) -> dict[str, str]:
    """Each worker that is matched by text, with what is missing."""
    return {str(worker): _missing(kept, worker, reports) for worker in kept.plan.members - kept.exact_workers()}


def _missing(kept: ExactPool, worker: WorkerId, reports: Mapping[Holder, StreamReport]) -> str:
    parity, report = kept.parity(worker), reports.get(Holder(worker))
    if not parity.startswith("equal"):
        return f"tokenizer {parity or 'not asked'}"
    return f"events {_feed_page(report)['events'] or 'not followed'}"


def _pool_page(kept: ExactPool, reports: Mapping[Holder, StreamReport]) -> _Page:
    exact = kept.exact_workers()
    return {
        "files_version": kept.files_version,
        "bytes": kept.bytes_used,
        "unrendered": kept.unrendered,
        "workers": {
            worker: {"exact": worker in exact, "parity": kept.parity(worker)} | _feed_page(reports.get(Holder(worker)))
            for worker in sorted(kept.plan.members)
        },
    }


def _feed_page(report: StreamReport | None) -> _Page:
    if report is None:
        return {"events": ""}
    return {
        "events": f"{report.state}: {report.reason}" if report.reason else report.state,
        "resident": {"device": report.resident.device, "host": report.resident.host, "remote": report.resident.remote},
        "credit": report.credit,
        "restarts": report.counts.restarts,
        "gaps": report.counts.gaps,
    }
