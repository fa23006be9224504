"""Scrapes many workers at once: bounded concurrency, one deadline, nothing raised for anything a worker does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

import httpx

from controlplane.fleet.addresses import AddressRefused, Pinned, parse_endpoint, pin
from controlplane.fleet.dcgm_page import GpuReading, read_dcgm_page
from controlplane.fleet.deltas import Base, Increases, increases
from controlplane.fleet.http_page import CONNECTIONS_MAX, Page, PageRefused, fetch, new_client, text_of
from controlplane.fleet.metrics_page import PAGE_BYTES_MAX, SERIES_WANTED, Reading, read_metrics_page
from controlplane.fleet.page_get import get_page
from router.contract.guard import PROOF_HEADER

DEADLINE_S_MAX = 1.9
"""A23: a poll takes at most 2 s, whatever the interval."""

# The slash matters: `/metrics?name[]=…` is redirected. Histograms are asked for by their sample names.
FILTERED_PATH = "/metrics/?" + "&".join(f"name[]={quote(name, safe=':')}" for name in SERIES_WANTED)
FULL_PATH = "/metrics"
LITERALS_KEPT_MAX = 4_096
"""Addresses without a name whose check is remembered."""


@dataclass(frozen=True, slots=True)
class Target:
    """A worker to scrape and what is known of its last page."""

    pk: int
    worker_id: str
    url: str
    dcgm_url: str = ""
    block_size: int = 16
    """The pool's."""
    base: Base | None = None
    """Counters of the last good poll."""
    filtered: bool | None = None
    """Whether the worker answers the filtered path; None = not yet tried."""
    proof: str = ""
    """For a guarded pool: by it the worker's guard learns of the fleet's epoch (S26)."""


@dataclass(slots=True)
class PollOutcome:
    target: Target
    at: float
    """Unix seconds at which the page was asked for."""
    error_kind: str = ""
    """Empty for a good page; else `unreachable`, `timeout`, `status`, `too_large`, `not_text`, `garbage`, `address`."""
    error: str = ""
    reading: Reading | None = None
    """None unless the page was good."""
    increases: Increases = field(default_factory=Increases)
    gpu: GpuReading | None = None
    scrape_ms: float | None = None
    filtered: bool | None = None

    @property
    def ok(self) -> bool:
        return self.reading is not None


async def poll_workers(targets: Sequence[Target], *, networks: Sequence[str], deadline_s: float) -> list[PollOutcome]:
    """One outcome for each target, in their order. Takes at most `deadline_s` (capped at DEADLINE_S_MAX)."""
    deadline_s = min(deadline_s, DEADLINE_S_MAX)
    gate = asyncio.Semaphore(CONNECTIONS_MAX)
    ends_at = time.monotonic() + deadline_s
    async with AsyncExitStack() as stack:
        tls = await stack.enter_async_context(new_client(timeout_s=deadline_s)) if _any_tls(targets) else None
        return await asyncio.gather(*(_poll(tls, gate, target, networks, ends_at) for target in targets))


def _any_tls(targets: Sequence[Target]) -> bool:
    return any(url.startswith("https:") for target in targets for url in (target.url, target.dcgm_url))


async def _poll(
    tls: httpx.AsyncClient | None, gate: asyncio.Semaphore, target: Target, networks: Sequence[str], ends_at: float
) -> PollOutcome:
    outcome = PollOutcome(target=target, at=time.time(), filtered=target.filtered)
    try:
        async with asyncio.timeout(max(0.0, ends_at - time.monotonic())), gate:
            outcome.at = time.time()
            began = time.perf_counter()
            await _scrape(tls, outcome, networks)
            outcome.scrape_ms = (time.perf_counter() - began) * 1000
            if target.dcgm_url:
                outcome.gpu = await _scrape_gpu(tls, target.dcgm_url, networks)
    except TimeoutError:
        # A page that came before the deadline stays good when only the GPU page was late.
        if outcome.reading is None:
            outcome.error_kind, outcome.error = "timeout", "No complete page before the poll's deadline."
    except (PageRefused, AddressRefused) as error:
        outcome.error_kind = error.kind if isinstance(error, PageRefused) else "address"
        outcome.error = str(error)
    return outcome


async def _scrape(tls: httpx.AsyncClient | None, outcome: PollOutcome, networks: Sequence[str]) -> None:
    target = outcome.target
    pinned = await _pinned(target.url, networks)
    reading = await _read_page(tls, pinned, outcome)
    if not reading.is_metrics_page:
        raise PageRefused("garbage", "The page is not in Prometheus text format.")
    current = Base(at=outcome.at, counters=reading.counters, started_at=reading.started_at)
    outcome.increases = increases(target.base, current)
    outcome.reading = reading


async def _read_page(tls: httpx.AsyncClient | None, pinned: Pinned, outcome: PollOutcome) -> Reading:
    """The filtered page where the worker has it, else the full one; which of them is remembered in the outcome."""
    filtered = None
    headers = {PROOF_HEADER: outcome.target.proof} if outcome.target.proof else None
    if outcome.filtered is not False:
        page = await _get(tls, pinned, FILTERED_PATH, headers)
        filtered = read_metrics_page(text_of(page)) if page.status == 200 else None
        if filtered is not None and filtered.vllm_series and (outcome.filtered or filtered.started_at is not None):
            outcome.filtered = True
            return filtered
    full = read_metrics_page(text_of(await _get(tls, pinned, FULL_PATH, headers)))
    outcome.filtered = _filter_suffices(filtered, full)
    return full


def _filter_suffices(filtered: Reading | None, full: Reading) -> bool | None:
    """Whether the filtered page says all that the full one does; None when neither shows a series to compare.

    A registry may leave the process's start time out of filtered pages, and restarts must be seen.
    """
    if not full.vllm_series:
        return None
    if filtered is None or not filtered.vllm_series:
        return False
    return filtered.started_at is not None or full.started_at is None


async def _get(
    tls: httpx.AsyncClient | None, pinned: Pinned, path: str, headers: Mapping[str, str] | None = None
) -> Page:
    if tls is not None and pinned.url.startswith("https:"):
        return await fetch(tls, pinned, path, bytes_max=PAGE_BYTES_MAX, headers=headers)
    return await get_page(pinned, path, bytes_max=PAGE_BYTES_MAX, headers=headers)


async def _scrape_gpu(tls: httpx.AsyncClient | None, url: str, networks: Sequence[str]) -> GpuReading | None:
    """None when the exporter cannot be read: GPU figures are unknown then, the worker's own stay good."""
    try:
        return read_dcgm_page(text_of(await _get(tls, await _pinned(url, networks, path_allowed=True), "")))
    except (PageRefused, AddressRefused):
        return None


async def _pinned(url: str, networks: Sequence[str], *, path_allowed: bool = False) -> Pinned:
    """Names are resolved off the loop: a slow name service delays one worker, not the shard."""
    literal = _pinned_literal(url, tuple(networks), path_allowed)
    if literal is not None:
        return literal
    endpoint = parse_endpoint(url, schemes=("http", "https"), path_allowed=path_allowed)
    return await asyncio.to_thread(pin, endpoint, networks=networks)


@lru_cache(maxsize=LITERALS_KEPT_MAX)
def _pinned_literal(url: str, networks: tuple[str, ...], path_allowed: bool) -> Pinned | None:
    """Of an address: nothing is resolved, so the check's outcome stays. None for a name."""
    endpoint = parse_endpoint(url, schemes=("http", "https"), path_allowed=path_allowed)
    if endpoint.host.replace(".", "").isdigit() or ":" in endpoint.host:
        return pin(endpoint, networks=networks, resolver=lambda host, port: [host])
    return None
