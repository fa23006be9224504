"""One pool in exact mode: its model's files, the proof that its workers tokenise alike, its prompts and their matches.

    loading ─▶ exact                    files are read, a worker is proven, none tokenises differently
       └─────▶ approximate: <reason>    tried again, for as long as the pool names a tokenizer

Each worker is proven by itself (`parity`) when it joins, when its address changes and after each restart. Until then,
or while its events are not complete, what it holds is unknown: its approximate match stands in for it. One worker that
tokenises differently makes the whole pool approximate: its members are not interchangeable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from router.adapters.chat_messages import Unrenderable
from router.adapters.exact_dialects import Dialects
from router.adapters.parity import ParityReport
from router.adapters.served_models import ServedModels
from router.adapters.tokenizer import Caller, ExactTokenizer, Prepared
from router.adapters.tokenizer_files import load_model_files
from router.contract.ids import PoolId, WorkerId
from router.core.exact.block_hashes import Adapter, BlockHasher
from router.core.exact.block_index import BlockIndex
from router.core.exact.chains import ExactPrefix
from router.core.model import ExactMatch, ExactPrompt, Grant
from router.logs import place_of

log = structlog.get_logger("router.exact")

RELOAD_S = 60.0
"""Before files that could not be used are read again: someone has to put others in their place."""
UNPROVEN_S = 5.0
"""Before a worker that gave no usable answer is asked again: it is starting, as a rule for half a minute."""
DIFFERENT_S = 60.0
"""Before a worker that tokenises differently is asked again: it has to be replaced."""
PROOFS_AT_ONCE = 4
"""Workers asked at one time, about thirty short questions each."""
UNKNOWN_S = 0.25
"""For so long it is remembered which workers' events are complete, unless a lease begins or ends: a worker whose gap is
being replayed is matched by text at once (A11)."""

CheckParity = Callable[[str, ExactTokenizer, str], Awaitable[ParityReport]]
"""(worker's URL, tokenizer, model) → report."""
Later = Callable[[], Awaitable[ExactPrefix | None]]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What the snapshot says of a pool that names a tokenizer."""

    tokenizer: str
    algorithm: str
    """Block hash of its workers."""
    block_size: int
    model: str
    members: frozenset[WorkerId]
    urls: Mapping[WorkerId, str] = field(default_factory=dict)
    """Of the workers that can be exact: their events can be followed and their block hash is known."""

    @property
    def source(self) -> tuple[str, str, int]:
        """With another one the pool begins anew."""
        return (self.tokenizer, self.algorithm, self.block_size)


@dataclass(slots=True, eq=False)
class _Proof:
    url: str
    report: ParityReport | None = None
    """The last one about the worker as it is; None while it is asked for the first time."""
    due_at: float = float("inf")
    """When to ask again, on the loop's clock."""


class ExactPool:
    """Belongs to one event loop. `changed` is called whenever its status or its proven workers change."""

    def __init__(
        self,
        pool: PoolId,
        plan: PoolPlan,
        *,
        folder: Path,
        secret: bytes,
        index: BlockIndex,
        check: CheckParity,
        clock: Callable[[], float],
        changed: Callable[[ExactPool], None],
    ) -> None:
        """`folder`: holds the tokenizers' folders. `clock`: the one that the index's leases are granted on."""
        self.pool = pool
        self.plan = plan
        self.unrendered = 0
        """Requests whose prompt could not be rendered as the worker does."""
        self._folder = folder
        self._secret = secret
        self._index = index
        self._check = check
        self._clock = clock
        self._changed = changed
        self._tokenizer: ExactTokenizer | None = None
        self._dialects: Dialects | None = None
        self._refused = ""
        self._proofs: dict[WorkerId, _Proof] = {}
        self._proven: frozenset[WorkerId] = frozenset()
        self._models: ServedModels = {}
        """What all proven workers serve, each under the same adapter."""
        self._unknown: frozenset[WorkerId] = plan.members
        self._lease_changes = -1
        self._unknown_until = float("-inf")
        self._places = 0
        """Of the workers whose cache is known, in the index as of `_places_version`."""
        self._places_version = -1
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    # state

    @property
    def status(self) -> str:
        """`loading`, `exact` or `approximate: <reason>`."""
        if self._refused:
            return f"approximate: {self._refused}"
        if self._tokenizer is None or (not self._proven and self._asking):
            return "loading"
        if self.differs:
            return "approximate: a worker tokenises differently"
        return "exact" if self._proven else "approximate: no worker could be proven to tokenise as the files here do"

    @property
    def differs(self) -> bool:
        return any(proof.report is not None and proof.report.verdict == "different" for proof in self._proofs.values())

    def different(self) -> dict[str, str]:
        """Each worker that tokenises differently, with the probe that showed it."""
        reports = {str(worker): proof.report for worker, proof in self._proofs.items() if proof.report is not None}
        return {worker: report.probe for worker, report in reports.items() if report.verdict == "different"}

    @property
    def loaded(self) -> bool:
        return self._tokenizer is not None

    def exact_workers(self) -> frozenset[WorkerId]:
        """The workers whose whole cache is known."""
        return self.plan.members - self._unknown_workers()

    def parity(self, worker: WorkerId) -> str:
        """`equal`, `different`, `unknown`, `asking` or "" where it is not asked; with the reason."""
        proof = self._proofs.get(worker)
        if proof is None:
            return ""
        report = proof.report
        if report is None:
            return "asking"
        reason = " ".join(part for part in (report.probe, report.reason) if part)
        return f"{report.verdict}: {reason}" if reason else report.verdict

    @property
    def files_version(self) -> str:
        return "" if self._tokenizer is None else self._tokenizer.version

    @property
    def bytes_used(self) -> int:
        return 0 if self._tokenizer is None else self._tokenizer.bytes_used

    # what it is told

    def take(self, plan: PoolPlan) -> None:
        """A snapshot with the same source: workers may have joined, left or moved."""
        self.plan = plan
        self._proofs = {worker: proof for worker, proof in self._proofs.items() if plan.urls.get(worker) == proof.url}
        self._settle()
        self._wake.set()

    def distrust(self, worker: WorkerId) -> None:
        """The worker restarted, maybe with other files: it is asked anew."""
        if self._proofs.pop(worker, None) is not None:
            self._settle()
            self._wake.set()

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._tokenizer is not None:
            self._tokenizer.close()

    # prompts

    def read(self, grant: Grant, fields: Mapping[str, Any], *, kind: str) -> ExactPrefix | Later | None:
        """The prompt as the workers hash it, or a call to await for it; None where it cannot be had.

        Any: JSON of each field, as bytes or `msgspec.Raw`. `kind`: as in `Dialects.decode`.
        """
        tokenizer, dialects = self._tokenizer, self._dialects
        if tokenizer is None or dialects is None or not self.exact_workers():
            return None
        try:
            caller = Caller(grant.tenant, grant.salt, self._adapter(grant.model))
            if kind == "chat":
                prepared = tokenizer.prepare_chat(caller, fields)
            else:
                decoded, chat = dialects.decode(fields, kind)
                prepared = tokenizer.prepare(caller, decoded, chat=chat)
            return tokenizer.finish_now(prepared) or partial(self._finish, tokenizer, prepared)
        except Unrenderable:
            self.unrendered += 1
        except Exception as error:
            self._say_mistake(error)
        return None

    def prompt(self, prefix: ExactPrefix) -> ExactPrompt | None:
        """The prompt with what each worker holds of it at this moment; None while no worker's cache is known."""
        unknown = self._unknown_workers()
        if len(unknown) == len(self.plan.members):
            return None
        if self._places_version != self._index.places_version:
            self._places = self._index.places_of(self.plan.members - unknown)
            self._places_version = self._index.places_version
        matches: dict[WorkerId, ExactMatch] = {}
        size = prefix.block_size
        for workers, match in self._index.worker_matches(prefix.hashes, self._places, now=self._clock()):
            matches.update(
                dict.fromkeys(workers, ExactMatch(match.device * size, match.host * size, match.remote * size))
            )
        return ExactPrompt(prefix.tokens, prefix.hashes, matches, unknown)

    def _adapter(self, model: str) -> Adapter | None:
        """The adapter that the workers know by this name, None for the model itself. Raises Unrenderable."""
        try:
            return self._models[model]
        except KeyError:
            raise Unrenderable("the workers do not all serve the model alike") from None

    async def _finish(self, tokenizer: ExactTokenizer, prepared: Prepared) -> ExactPrefix | None:
        try:
            return await tokenizer.finish(prepared)
        except Unrenderable:
            self.unrendered += 1
        except Exception as error:
            self._say_mistake(error)
        return None

    def _say_mistake(self, error: Exception) -> None:
        """A request is served whatever becomes of its fingerprint. Type and place only (S19)."""
        log.error("exact_prompt_failed", pool=self.pool, error=type(error).__name__, place=place_of(error))

    def _unknown_workers(self) -> frozenset[WorkerId]:
        now = self._clock()
        if now >= self._unknown_until or self._lease_changes != self._index.lease_changes:
            is_exact = self._index.is_exact
            known = {worker for worker in self._proven if is_exact(worker, now=now)} if self.status == "exact" else ()
            self._unknown = self.plan.members.difference(known)
            self._places_version = -1
            self._unknown_until = now + UNKNOWN_S
            self._lease_changes = self._index.lease_changes
        return self._unknown

    # files and proofs

    async def _keep(self) -> None:
        """Until cancelled: load the files, then prove whoever is due."""
        while not await self._load():
            self._changed(self)
            await asyncio.sleep(RELOAD_S)
        self._settle()
        while True:
            self._wake.clear()
            await self._prove_due()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause_s())

    async def _load(self) -> bool:
        plan = self.plan
        try:
            hasher = BlockHasher(algorithm=plan.algorithm, block_size=plan.block_size)
            files = await asyncio.to_thread(load_model_files, self._folder / plan.tokenizer)
            self._tokenizer = ExactTokenizer(files, hasher=hasher, secret=self._secret)
            self._dialects = Dialects(self._tokenizer.template)
        except ValueError as error:
            # ModelFilesError, UnknownHashAlgorithm, or a template that cannot be used: each says what is wrong.
            self._refused = str(error)
            return False
        except Exception as error:
            self._say_mistake(error)
            self._refused = "the model's files cannot be used"
            return False
        self._refused = ""
        return True

    async def _prove_due(self) -> None:
        now, at_once = asyncio.get_running_loop().time(), asyncio.Semaphore(PROOFS_AT_ONCE)
        due = [
            (worker, url)
            for worker, url in self.plan.urls.items()
            if worker not in self._proofs or self._proofs[worker].due_at <= now
        ]
        if due:
            for worker, url in due:
                known = self._proofs.get(worker)
                self._proofs[worker] = _Proof(url, None if known is None else known.report)
            self._settle()
            await asyncio.gather(*(self._prove(worker, self._proofs[worker], at_once) for worker, _ in due))

    async def _prove(self, worker: WorkerId, proof: _Proof, at_once: asyncio.Semaphore) -> None:
        assert self._tokenizer is not None
        async with at_once:
            try:
                report = await self._check(proof.url, self._tokenizer, self.plan.model)
            except Exception as error:
                self._say_mistake(error)
                report = ParityReport("unknown", self._tokenizer.version, 0, 0, reason="the check failed")
        if self._proofs.get(worker) is not proof:
            # It restarted or moved meanwhile: the answer is about what it was.
            return
        proof.report = report
        pause_s = {"equal": float("inf"), "different": DIFFERENT_S, "unknown": UNPROVEN_S}[report.verdict]
        proof.due_at = asyncio.get_running_loop().time() + pause_s
        level = log.info if report.verdict == "equal" else log.warning
        level("worker_parity", pool=self.pool, worker=worker, parity=self.parity(worker))
        self._settle()

    @property
    def _asking(self) -> bool:
        """Whether a worker is asked for the first time."""
        return any(worker not in self._proofs or self._proofs[worker].report is None for worker in self.plan.urls)

    def _pause_s(self) -> float | None:
        """Until the next worker is due, None without one."""
        due_at = min((proof.due_at for proof in self._proofs.values()), default=float("inf"))
        return None if due_at == float("inf") else max(0.0, due_at - asyncio.get_running_loop().time())

    def _settle(self) -> None:
        self._proven = frozenset(
            worker
            for worker, proof in self._proofs.items()
            if proof.report is not None and proof.report.verdict == "equal"
        )
        self._models = _served_alike([proof.report for proof in self._proofs.values() if proof.report is not None])
        self._unknown_until = float("-inf")
        self._changed(self)


def _served_alike(reports: Sequence[ParityReport]) -> ServedModels:
    """An adapter of another path has blocks of other hashes: its name is left out where workers differ."""
    equal = [report.models for report in reports if report.verdict == "equal"]
    if not equal:
        return {}
    first, *others = equal
    return {name: adapter for name, adapter in first.items() if all(_has(each, name, adapter) for each in others)}


def _has(models: ServedModels, name: str, adapter: Adapter | None) -> bool:
    return name in models and models[name] == adapter
