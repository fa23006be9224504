"""Why a request went where it went, and where one would go: the answers behind `/explain` on the admin port.

Past decisions: the samples that telemetry ships keep their candidates; of the latest others what was decided is kept,
and their candidates are computed afresh and marked `recomputed`, since index and load have moved on. A prompt is kept
as keyed hashes only, for RECENT_MAX requests. Every term of a candidate is named: 0 is a term of nothing, null one that
is not known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from router.call import NO_TEMPLATE, Call
from router.contract.ids import NamespaceId
from router.contract.telemetry import Candidate, DecisionSample
from router.core.explain import sentence
from router.core.model import Decision, ExactPrompt, Grant, RoutingError, RoutingRequest
from router.core.table import RoutingTable
from router.http import openai
from router.http.endpoints import ENDPOINTS
from router.http.errors import BadRequest, EdgeError, Refused
from router.http.pull_bodies import may_pull
from router.partners import Recorder

RECENT_MAX: Final = 1000
"""Decisions kept besides the samples: about 0.5 KB each and 40 bytes for each block of the prompt."""
RECENT_EXACT_BLOCKS_MAX: Final = 1_000_000
"""Blocks of their exact prompts, which are as small as 64 bytes of text: 40 MB. Above it the oldest decisions go."""

NO_CANDIDATES: Final = {
    "candidates_missing": "Of this request only a sample without candidates is kept, and the prompt is no longer known."
}
"""Samples of errors, slow requests and violations are taken after the choice, which had kept no candidates."""

Page = dict[str, Any]  # Any: a page for people, of many kinds of values


class _Past:
    """What is left of a finished call: no text of the client's, so no session id either."""

    __slots__ = ("decision", "outcome", "pull", "status")

    def __init__(self, decision: Decision, outcome: str, status: int, pull: str) -> None:
        self.decision: Final = decision
        self.outcome: Final = outcome
        self.status: Final = status
        self.pull: Final = pull


class RecentDecisions:
    """A recorder in front of telemetry's that remembers the latest decisions."""

    def __init__(self, behind: Recorder) -> None:
        self._behind = behind
        self._pasts: dict[str, _Past] = {}
        self._exact_blocks = 0

    def record(self, call: Call) -> None:
        self._behind.record(call)
        decision = call.decision
        if decision is None:
            return
        if len(self._pasts) >= RECENT_MAX:
            self._forget_oldest()
        request = decision.request
        if request.exact is not None:
            self._exact_blocks += len(request.exact.block_hashes)
            while self._exact_blocks > RECENT_EXACT_BLOCKS_MAX and self._pasts:
                self._forget_oldest()
        if request.session:
            # Nobody else looks at a finished call's decision.
            decision.request = RoutingRequest(
                request.request_id,
                request.grant,
                request.fingerprint,
                form=request.form,
                exact=request.exact,
                may_pull=request.may_pull,
            )
        self._pasts[call.request_id] = _Past(
            decision, call.outcome.error or "ok", call.outcome.status, call.pull_result
        )

    def record_refusal(self, kind: str) -> None:
        self._behind.record_refusal(kind)

    def _forget_oldest(self) -> None:
        exact = self._pasts.pop(next(iter(self._pasts))).decision.request.exact
        if exact is not None:
            self._exact_blocks -= len(exact.block_hashes)

    def get(self, request_id: str) -> _Past | None:
        return self._pasts.get(request_id)


class Explainer:
    def __init__(
        self,
        *,
        table: RoutingTable,
        recent: RecentDecisions,
        samples: Callable[[], Mapping[str, DecisionSample]],
        exact_prompt: Callable[[Grant, openai.ApiRequest], Awaitable[ExactPrompt | None]],
        clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._recent = recent
        self._samples = samples
        self._exact_prompt = exact_prompt
        self._clock = clock

    def past(self, request_id: str) -> Page | None:
        """The decision of a finished request, None when none is kept."""
        sample = self._samples().get(request_id)
        past = self._recent.get(request_id)
        if sample is not None:
            page = _sample_page(sample)
            if sample.candidates:
                return page
            return page | (NO_CANDIDATES if past is None else self._recomputed(past.decision.request))
        if past is None:
            return None
        page = _page(past.decision) | {
            "request_id": request_id, "outcome": past.outcome, "status": past.status, "pull": past.pull,
        }  # fmt: skip
        return page | self._recomputed(past.decision.request)

    async def would_be(
        self, body: bytes, *, path: str, namespace: str, api_key: str | None, session: str | None
    ) -> Page:
        """What would be decided at this moment for a request body, with every candidate; nothing is reserved.

        Asked for a namespace by name, or by an API key. Raises EdgeError.
        """
        endpoint = ENDPOINTS.get(path.encode())
        if endpoint is None:
            raise BadRequest("path is not an endpoint that runs a model.", param="path")
        api = openai.parse_for(endpoint, body)
        try:
            grant = self._grant(namespace, api_key, api.model)
            text, now = api.text, self._clock()
            fingerprint = None if text is None else self._table.fingerprint(grant, text, template=NO_TEMPLATE)
            request = RoutingRequest(
                request_id="explain",
                grant=grant,
                fingerprint=fingerprint,
                session=session or api.user,
                max_tokens=api.max_tokens,
                form=api.form,
                exact=await self._exact_prompt(grant, api),
                may_pull=self._table.may_pull(grant.pool, now=now) and may_pull(api),
            )
            decision = self._table.choose(request, now=self._clock(), explain=True)
        except RoutingError as error:
            raise Refused(error) from None
        return _page(decision) | {"computed_at": self._clock(), "policy_version": self._table.policy_version}

    def _grant(self, namespace: str, api_key: str | None, model: str) -> Grant:
        if namespace:
            return self._table.grant_of(NamespaceId(namespace), model=model)
        return self._table.resolve(api_key=api_key, model=model, now=self._clock(), lease_now=monotonic())

    def _recomputed(self, request: RoutingRequest) -> Page:
        try:
            decision = self._table.choose(request, now=self._clock(), explain=True)
        except RoutingError as error:
            return {"recomputed": {"at": self._clock(), "refused": error.message}}
        fresh = _page(decision)
        keys = ("worker", "reason", "sentence", "candidates")
        return {"recomputed": {"at": self._clock()} | {key: fresh[key] for key in keys}}


def _sample_page(sample: DecisionSample) -> Page:
    return msgspec.structs.asdict(sample) | {"candidates": [msgspec.structs.asdict(each) for each in sample.candidates]}


def _candidate_page(candidate: Candidate, request: RoutingRequest) -> Page:
    page = msgspec.structs.asdict(candidate)
    if request.exact is None and request.fingerprint is None:
        # A prompt without text is matched with nothing: what a worker holds of it is not known.
        page["matched_tokens"] = None
    return page


def _page(decision: Decision) -> Page:
    request = decision.request
    grant, fingerprint = request.grant, request.fingerprint
    return {
        "tenant": grant.tenant,
        "namespace": grant.namespace,
        "pool": grant.pool,
        "model": grant.model,
        "worker": decision.worker,
        "reason": decision.reason,
        "spill": decision.spill,
        "preferred": decision.preferred,
        "sentence": sentence(decision),
        "form": request.form.partition("+")[0],
        "exact": request.exact is not None,
        "prefix": decision.prefix,
        "spread": decision.spread,
        "blocks": None if fingerprint is None else len(fingerprint.hashes),
        "matched_blocks": decision.matched_blocks,
        "predicted_hit_tokens": decision.predicted_hit_tokens,
        "expected_tokens": decision.expected_tokens,
        "predicted_prompt_tokens": decision.predicted_prompt_tokens,
        "predicted_ttft_ms": decision.predicted_ttft_ms,
        "pulls_from": None if decision.source is None else decision.source.worker,
        "candidates": [_candidate_page(each, request) for each in decision.candidates],
    }


def refusal(error: EdgeError) -> Page:
    """A request that would be refused, in numbers."""
    return {"refused": {"status": error.status, "kind": error.kind, "message": error.message, "param": error.param}}
