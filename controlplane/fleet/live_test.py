"""Asks a worker what it is and whether it is set up so that its cache can be reused and watched.

Each check is true, false or null (could not be told), with one sentence that says what to do. Facts found on the way
(block size, hash algorithm, models, version …) are returned for the worker's row.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
import msgspec

from controlplane.fleet.addresses import AddressRefused, Endpoint, Pinned, check_tcp, parse_endpoint, pin
from controlplane.fleet.dcgm_page import read_dcgm_page
from controlplane.fleet.findings import Observation
from controlplane.fleet.http_page import Page, PageRefused, fetch, new_client, text_of
from controlplane.fleet.metrics_page import PAGE_BYTES_MAX, Reading, read_metrics_page
from router.contract.guard import GUARD_ERROR_TYPE, PROOF_HEADER

REQUEST_S = 5.0
"""One question; a cold worker's first completion takes longest."""
TOTAL_S = 25.0
ANSWER_BYTES_MAX = 256 * 1024
PROMPT_BLOCKS = 3
"""Whole blocks in the probe: a prompt is never fully cached, so that one block would show nothing."""
MODELS_KEPT_MAX = 64
NO_HEADERS: Mapping[str, str] = {}

FINDING_OF_CHECK = {
    "prefix_caching": "caching_off",
    "block_size": "block_size_mismatch",
    "metrics": "metrics_missing",
    "usage_details": "usage_details_off",
    "dev_mode": "dev_mode_open",
    "models": "model_not_served",
    "guard": "guard_open",
}
"""Checks whose failure lasts until the worker is started differently."""


@dataclass(frozen=True, slots=True)
class Subject:
    url: str
    block_size: int
    """The pool's."""
    models: tuple[str, ...]
    """The pool's."""
    kv_events_endpoint: str = ""
    dcgm_url: str = ""
    proof_of: Callable[[str], str] | None = None
    """Salt → proof, for a pool whose workers run the worker guard (S26); None = it has none."""


@dataclass(frozen=True, slots=True)
class Check:
    check: str
    ok: bool | None
    message: str

    def as_json(self) -> dict[str, object]:
        return {"check": self.check, "ok": self.ok, "message": self.message}


@dataclass(slots=True)
class Report:
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    kv_events_endpoint: str = ""
    kv_replay_endpoint: str = ""

    @property
    def ok(self) -> bool:
        """No check failed; unknown ones do not count against the worker."""
        return all(check.ok is not False for check in self.checks)

    def add(self, check: str, ok: bool | None, message: str) -> None:
        self.checks.append(Check(check, ok, message))

    def findings_for(self, worker_id: str) -> tuple[list[Observation], list[str]]:
        """Findings to open, and kinds of finding that this report disproves."""
        failed = [
            Observation(FINDING_OF_CHECK[check.check], worker_id, check.message)
            for check in self.checks
            if check.ok is False and check.check in FINDING_OF_CHECK
        ]
        passed = [FINDING_OF_CHECK[c.check] for c in self.checks if c.ok is True and c.check in FINDING_OF_CHECK]
        return failed, passed


def run(subject: Subject, *, networks: Sequence[str], api_key: str = "") -> Report:
    """The whole test; never raises for anything the worker does. Not for code inside an event loop."""
    report = Report()
    try:
        endpoint = parse_endpoint(subject.url, schemes=("http", "https"))
        pinned = pin(endpoint, networks=networks)
    except AddressRefused as error:
        report.add("reachable", False, str(error))
        return report
    probe = _Probe(subject, report, endpoint, pinned, networks, api_key)
    try:
        asyncio.run(asyncio.wait_for(probe.run(), TOTAL_S))
    except TimeoutError:
        report.add("complete", False, f"The worker took longer than {TOTAL_S:.0f} s; the other checks did not run.")
    return report


@dataclass(slots=True)
class _Probe:
    subject: Subject
    report: Report
    endpoint: Endpoint
    pinned: Pinned
    networks: Sequence[str]
    api_key: str

    async def run(self) -> None:
        async with new_client(timeout_s=REQUEST_S) as client:
            if not await self._reachable(client):
                return
            served = await self._models(client)
            self._read_metrics(await self._metrics(client))
            await self._events(client)
            await self._usage(client, served)
            await self._guard(client)
            await self._gpu(client)
            await self._dev_mode(client)

    async def _reachable(self, client: httpx.AsyncClient) -> bool:
        try:
            page = await self._get(client, "/health")
        except PageRefused as error:
            self.report.add("reachable", False, f"The worker does not answer: {error}")
            return False
        healthy = page.status == 200
        self.report.add(
            "reachable", healthy, "The worker answers." if healthy else f"/health answered with {page.status}."
        )
        await self._version(client)
        return healthy

    async def _version(self, client: httpx.AsyncClient) -> None:
        answer = await self._json(client, "/version")
        if isinstance(answer, dict) and isinstance(answer.get("version"), str):
            self.report.facts["version"] = answer["version"][:40]

    async def _models(self, client: httpx.AsyncClient) -> list[str]:
        """The model names the worker serves."""
        answer = await self._json(client, "/v1/models")
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list):
            self.report.add("models", None, "/v1/models gave no list: is TIDEMARK_WORKER_API_KEY right?")
            return []
        served = [str(item["id"])[:200] for item in data[:MODELS_KEPT_MAX] if isinstance(item, dict) and "id" in item]
        self.report.facts["models"] = served
        missing = [name for name in self.subject.models if name not in served]
        if missing:
            self.report.add("models", False, f"The pool names {', '.join(missing)}; the worker serves only {served}.")
        else:
            self.report.add("models", True, f"Serves {', '.join(served)}.")
        return served

    async def _metrics(self, client: httpx.AsyncClient) -> Reading | None:
        try:
            return read_metrics_page(text_of(await self._get(client, "/metrics", bytes_max=PAGE_BYTES_MAX)))
        except PageRefused as error:
            self.report.add("metrics", False, f"/metrics cannot be read: {error}")
            return None

    def _read_metrics(self, reading: Reading | None) -> None:
        if reading is None:
            return
        if reading.metrics_missing:
            self.report.add("metrics", False, "No vllm: series: start the worker without --disable-log-stats.")
            return
        self.report.add("metrics", True, f"{reading.vllm_series} series read.")
        self.report.facts.update(reading.facts)
        caching = reading.facts.get("prefix_caching")
        self.report.add(
            "prefix_caching",
            caching if isinstance(caching, bool) else None,
            {
                True: "Prefix caching is on.",
                False: "Prefix caching is off: start the worker with --enable-prefix-caching.",
            }.get(caching, "The worker does not say whether it caches prefixes."),  # type: ignore[call-overload]
        )
        self._block_size(reading.facts.get("block_size"))
        algorithm = reading.facts.get("hash_algorithm")
        self.report.add(
            "hash_algorithm", None if algorithm is None else True, f"Block hashes: {algorithm or 'not named'}."
        )

    def _block_size(self, found: object) -> None:
        wanted = self.subject.block_size
        if found is None:
            self.report.add("block_size", None, "The worker does not name its block size.")
        elif found == wanted:
            self.report.add("block_size", True, f"{found} tokens, as in its pool.")
        else:
            self.report.add(
                "block_size",
                False,
                f"{found} tokens, but its pool says {wanted}: set the pool's block size or --block-size.",
            )

    async def _events(self, client: httpx.AsyncClient) -> None:
        answer = await self._json(client, "/kv_event_sources")
        source = answer.get("0") if isinstance(answer, dict) else None
        if not isinstance(source, dict) or not source.get("enable_kv_cache_events"):
            known = bool(self.subject.kv_events_endpoint)
            self.report.facts["events"] = known or None
            self.report.add(
                "events",
                None if known else False,
                "The worker does not tell its event sources." if known
                else "No KV events: start the worker with --kv-events-config to see churn and occupancy.",
            )  # fmt: skip
            return
        self._take_endpoints(source, ranks=len(answer) if isinstance(answer, dict) else 1)

    def _take_endpoints(self, source: dict[str, object], *, ranks: int) -> None:
        """`tcp://*:port` names all interfaces: the worker's own host takes the star's place."""
        try:
            events = self._own_endpoint(source.get("endpoint"))
            replay = self._own_endpoint(source.get("replay_endpoint")) if source.get("replay_endpoint") else ""
        except AddressRefused as error:
            self.report.add("events", False, f"The worker names an event endpoint that is not accepted: {error}")
            return
        self.report.facts["events"] = True
        self.report.facts["event_buffer_steps"] = source.get("buffer_steps")
        self.report.kv_events_endpoint, self.report.kv_replay_endpoint = events, replay
        more = f" Only rank 0 of {ranks} is followed." if ranks > 1 else ""
        without = "" if replay else " Without a replay endpoint a lost message makes the occupancy unknown."
        self.report.add("events", True if replay else None, f"KV events at {events}.{without}{more}")

    def _own_endpoint(self, text: object) -> str:
        named = str(text).replace("*", "placeholder").replace("0.0.0.0", "placeholder").replace("[::]", "placeholder")  # noqa: S104
        port = parse_endpoint(named, schemes=("tcp",)).port
        return check_tcp(Endpoint("tcp", self.endpoint.host, port).url, networks=self.networks)

    async def _usage(self, client: httpx.AsyncClient, served: list[str]) -> None:
        """The same salted prompt twice: the second answer must name cached tokens."""
        model = next((name for name in self.subject.models if name in served), served[0] if served else "")
        if not model:
            self.report.add("usage_details", None, "No model is known to ask for a completion.")
            return
        salt = secrets.token_hex(16)
        cached = [await self._cached_tokens(client, model, salt) for _ in range(2)]
        if cached[1] is None:
            self.report.facts["usage_details"] = False
            self.report.add(
                "usage_details",
                False,
                "Answers do not name cached tokens: start the worker with --enable-prompt-tokens-details.",
            )
        elif isinstance(cached[1], str):
            self.report.add("usage_details", None, f"The test completion failed: {cached[1]}")
        else:
            self.report.facts["usage_details"] = True
            self.report.add("usage_details", True, f"Answers name cached tokens ({cached[1]} at the second asking).")

    async def _cached_tokens(self, client: httpx.AsyncClient, model: str, salt: str) -> int | str | None:
        """Cached tokens of one completion, None when the answer does not name them, or what went wrong."""
        body = {
            "model": model,
            "prompt": "tide " * (PROMPT_BLOCKS * self.subject.block_size),
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": salt,
        }
        try:
            proof_of = self.subject.proof_of
            proof = {PROOF_HEADER: proof_of(salt)} if proof_of is not None else {}
            page = await self._send(client, "/v1/completions", method="POST", json=body, headers=proof)
        except PageRefused as error:
            return str(error)
        answer = _loads(page.body)
        if page.status != 200 or not isinstance(answer, dict):
            return f"status {page.status}"
        usage = answer.get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        count = details.get("cached_tokens") if isinstance(details, dict) else None
        return count if isinstance(count, int) else None

    async def _guard(self, client: httpx.AsyncClient) -> None:
        """A request without proof must be refused by the guard itself, not for another reason."""
        if self.subject.proof_of is None:
            return
        try:
            page = await self._send(client, "/v1/completions", method="POST", json={})
        except PageRefused as error:
            self.report.add("guard", None, f"The guard could not be tried: {error}")
            return
        answer = _loads(page.body)
        error_told = answer.get("error") if isinstance(answer, dict) else None
        closed = page.status == 403 and isinstance(error_told, dict) and error_told.get("type") == GUARD_ERROR_TYPE
        self.report.add(
            "guard",
            closed,
            "The guard refuses what no router sent." if closed
            else "The pool is guarded and this worker is not: start it with --middleware tidemark_guard.TidemarkGuard.",
        )  # fmt: skip

    async def _gpu(self, client: httpx.AsyncClient) -> None:
        if not self.subject.dcgm_url:
            return
        try:
            pinned = pin(
                parse_endpoint(self.subject.dcgm_url, schemes=("http", "https"), path_allowed=True),
                networks=self.networks,
            )
            page = await fetch(client, pinned, "", bytes_max=PAGE_BYTES_MAX)
            found = read_dcgm_page(text_of(page)).as_json()
        except (PageRefused, AddressRefused) as error:
            self.report.add("gpu", False, f"The DCGM page cannot be read: {error}")
            return
        self.report.add("gpu", bool(found), "GPU figures read." if found else "The page holds no DCGM figures.")

    async def _dev_mode(self, client: httpx.AsyncClient) -> None:
        """`/server_info` exists in developer mode only; it is asked for, nothing is changed by it."""
        try:
            page = await self._get(client, "/server_info")
        except PageRefused:
            self.report.add("dev_mode", None, "It could not be told whether developer endpoints are open.")
            return
        closed = page.status in (401, 403, 404)
        self.report.add(
            "dev_mode",
            closed,
            "Developer endpoints are closed." if closed
            else "Developer endpoints are open: start the worker without VLLM_SERVER_DEV_MODE.",
        )  # fmt: skip

    async def _json(self, client: httpx.AsyncClient, path: str) -> object:
        """The decoded answer of a 200, else None."""
        try:
            page = await self._get(client, path)
        except PageRefused:
            return None
        return _loads(page.body) if page.status == 200 else None

    async def _get(self, client: httpx.AsyncClient, path: str, *, bytes_max: int = ANSWER_BYTES_MAX) -> Page:
        return await self._send(client, path, bytes_max=bytes_max)

    async def _send(
        self,
        client: httpx.AsyncClient,
        path: str,
        *,
        method: str = "GET",
        json: object = None,
        headers: Mapping[str, str] = NO_HEADERS,
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> Page:
        sent = {"authorization": f"Bearer {self.api_key}"} if self.api_key and path.startswith("/v1/") else {}
        try:
            async with asyncio.timeout(REQUEST_S):
                return await fetch(
                    client,
                    self.pinned,
                    path,
                    bytes_max=bytes_max,
                    method=method,
                    headers={**sent, **headers},
                    json=json,
                )
        except TimeoutError as error:
            raise PageRefused("unreachable", f"no answer within {REQUEST_S:.0f} s") from error


def _loads(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
