"""One second of finished requests, summed by their dimensions. Pure: no clock, no socket."""

from __future__ import annotations

from typing import Final

from router.adapters.telemetry_reach import Reach
from router.call import Call
from router.contract.histogram import observe
from router.contract.telemetry import DecisionSample, RequestRow, Violation
from router.core.explain import sentence
from router.core.model import Outcome

ROWS_MAX: Final = 2000
"""Combinations of dimensions in a second; further ones are summed under empty names."""
SAMPLES_PER_S_MAX: Final = 50
VIOLATIONS_PER_S_MAX: Final = 200
SLOW_MS: Final = 5000.0
"""A request slower than this is sampled when its namespace has no objective."""

_Key = tuple[str, str, str, str, str, str]
_NOBODY: _Key = ("", "", "", "", "", "")


class SecondAggregate:
    """Rows, violations and samples of the second under way; `take` hands them over and starts the next."""

    def __init__(self) -> None:
        self._rows: dict[_Key, tuple[RequestRow, Reach]] = {}
        self._violations: list[Violation] = []
        self._samples: list[DecisionSample] = []

    def add(self, finished: Call, *, at: float, policy_version: int) -> None:
        row, reach = self._row(_key(finished))
        _count(row, reach, finished)
        outcome, assessment = finished.outcome, finished.assessment
        violated = assessment is not None and assessment.isolation == "violation"
        too_soon = assessment is not None and assessment.expected_ttft_ms > 0 and not violated
        if (violated or too_soon) and len(self._violations) < VIOLATIONS_PER_S_MAX:
            self._violations.append(_violation(finished, at, kind="bound" if violated else "ttft"))
        wanted = violated or too_soon or finished.sampled or not outcome.ok or _is_slow(finished)
        if wanted and finished.decision is not None and len(self._samples) < SAMPLES_PER_S_MAX:
            self._samples.append(decision_sample(finished, at=at, policy_version=policy_version))

    def add_refusal(self, kind: str) -> None:
        """A request that the edge refused: nobody's, since nobody was resolved."""
        row, _ = self._row(_NOBODY)
        row.requests += 1
        row.errors[kind] = row.errors.get(kind, 0) + 1

    def take(self) -> tuple[list[RequestRow], list[Violation], list[DecisionSample]]:
        for row, reach in self._rows.values():
            reach.put(row)
        taken = [row for row, _ in self._rows.values()], self._violations, self._samples
        self._rows, self._violations, self._samples = {}, [], []
        return taken

    def _row(self, key: _Key) -> tuple[RequestRow, Reach]:
        found = self._rows.get(key)
        if found is not None:
            return found
        if len(self._rows) >= ROWS_MAX:
            key = _NOBODY
            if key in self._rows:
                return self._rows[key]
        tenant, namespace, pool, worker, model, template = key
        row = RequestRow(tenant=tenant, namespace=namespace, pool=pool, worker=worker, model=model, template=template)
        found = self._rows[key] = row, Reach()
        return found


def _key(finished: Call) -> _Key:
    """Only names the snapshot knows: what a client merely claims opens no row."""
    grant = finished.grant
    if grant is None:
        return _NOBODY
    worker = finished.decision.worker if finished.decision is not None else ""
    return grant.tenant, grant.namespace, grant.pool, worker, grant.model, finished.template


def _count(row: RequestRow, reach: Reach, finished: Call) -> None:
    outcome, decision, assessment = finished.outcome, finished.decision, finished.assessment
    row.requests += 1
    if finished.retries:
        row.retries += finished.retries
    if outcome.error:
        row.errors[outcome.error] = row.errors.get(outcome.error, 0) + 1
    if decision is not None and decision.spill:
        row.spills[decision.spill] = row.spills.get(decision.spill, 0) + 1
    if finished.pull_result:
        _count_pull(row, finished)
    if finished.decision_us is not None:
        observe(row.decision_us, finished.decision_us)
    if outcome.duration_ms is not None:
        observe(row.duration, outcome.duration_ms)
    if outcome.prompt_tokens is not None:
        _count_tokens(row, reach, finished, outcome.prompt_tokens)
    if outcome.ttft_ms is not None:
        reach.count_ttft(
            row,
            ttft_ms=outcome.ttft_ms,
            prompt_tokens=outcome.prompt_tokens,
            cached_tokens=outcome.cached_tokens,
            beside=0 if decision is None else decision.beside,
        )
    if finished.grant is not None and finished.grant.policy.ttft_slo_ms is not None:
        _count_objective(row, outcome, finished.grant.policy.ttft_slo_ms)
    if assessment is not None and assessment.isolation:
        _count_isolation(row, assessment.isolation)


def _count_pull(row: RequestRow, finished: Call) -> None:
    row.pulls += 1
    if finished.pull_result == "fell_back":
        row.pulls_failed += 1
    elif finished.decision is not None:
        row.pulled_tokens += finished.decision.loaded_tokens


def _count_tokens(row: RequestRow, reach: Reach, finished: Call, prompt_tokens: int) -> None:
    outcome, assessment = finished.outcome, finished.assessment
    row.usage_known += 1
    row.prompt_tokens += prompt_tokens
    row.output_tokens += outcome.completion_tokens or 0
    if outcome.cached_tokens is None:
        return
    row.hit_known += 1
    row.hit_tokens += outcome.cached_tokens
    row.hit_prompt_tokens += prompt_tokens
    reach.count(finished.decision, prompt_tokens=prompt_tokens, cached_tokens=outcome.cached_tokens)
    if assessment is not None:
        row.predicted_hit_tokens += assessment.predicted_hit_tokens
        row.saved_prefill_ms += assessment.saved_prefill_ms


_CLIENTS_OWN: Final = frozenset(
    ("bad_request", "unauthorized", "forbidden", "not_found", "too_large", "client_disconnect")
)
"""Failures that say nothing about the service's objective."""


def _count_objective(row: RequestRow, outcome: Outcome, slo_ms: float) -> None:
    if outcome.ttft_ms is not None:
        row.slo_known += 1
        row.slo_met += outcome.ok and outcome.ttft_ms <= slo_ms
    elif not outcome.ok and outcome.error not in _CLIENTS_OWN:
        row.slo_known += 1


def _count_isolation(row: RequestRow, verdict: str) -> None:
    row.isolation_checked += 1
    row.isolation_unknown += verdict == "unknown"
    row.isolation_violations += verdict == "violation"


def _is_slow(finished: Call) -> bool:
    outcome = finished.outcome
    slo_ms = finished.grant.policy.ttft_slo_ms if finished.grant is not None else None
    if slo_ms is not None:
        return outcome.ttft_ms is not None and outcome.ttft_ms > slo_ms
    waited_ms = outcome.ttft_ms if outcome.ttft_ms is not None else outcome.duration_ms
    return waited_ms is not None and waited_ms > SLOW_MS


def _violation(finished: Call, at: float, *, kind: str) -> Violation:
    assert finished.grant is not None and finished.decision is not None and finished.assessment is not None
    return Violation(
        at=at,
        request_id=finished.request_id,
        tenant=finished.grant.tenant,
        namespace=finished.grant.namespace,
        pool=finished.grant.pool,
        worker=finished.decision.worker,
        model=finished.grant.model,
        prompt_tokens=finished.outcome.prompt_tokens or 0,
        cached_tokens=finished.outcome.cached_tokens or 0,
        bound_tokens=(finished.assessment.isolation_bound_tokens or 0) if kind == "bound" else 0,
        evidence=finished.assessment.evidence,
        kind=kind,
        ttft_ms=(finished.outcome.ttft_ms or 0.0) if kind == "ttft" else 0.0,
        expected_ms=finished.assessment.expected_ttft_ms if kind == "ttft" else 0.0,
    )


def decision_sample(finished: Call, *, at: float, policy_version: int) -> DecisionSample:
    decision, grant, outcome = finished.decision, finished.grant, finished.outcome
    assert decision is not None and grant is not None
    return DecisionSample(
        at=at,
        request_id=finished.request_id,
        tenant=grant.tenant,
        namespace=grant.namespace,
        pool=grant.pool,
        model=grant.model,
        policy_version=policy_version,
        worker=decision.worker,
        reason=decision.reason,
        sentence=sentence(decision),
        candidates=decision.candidates,
        template=finished.template,
        prompt_tokens=outcome.prompt_tokens,
        predicted_hit_tokens=decision.predicted_hit_tokens,
        cached_tokens=outcome.cached_tokens,
        ttft_ms=outcome.ttft_ms,
        duration_ms=outcome.duration_ms,
        decision_us=finished.decision_us or 0.0,
        outcome=outcome.error or "ok",
        status=outcome.status,
        preferred=decision.preferred or "",
        spill=decision.spill,
        predicted_prompt_tokens=decision.predicted_prompt_tokens,
        exact=decision.request.exact is not None,
        pull=finished.pull_result,
        pulled_from=finished.pulled_from,
        pull_ms=finished.pull_ms,
        output_tokens=outcome.completion_tokens,
        predicted_ttft_ms=decision.predicted_ttft_ms,
        retries=finished.retries,
        retried_after_ms=finished.retried_after_ms,
        auth_us=finished.auth_us,
        reading_us=finished.reading_us,
        fingerprint_us=finished.fingerprint_us,
        connect_ms=finished.connect_ms,
        queue_ms=_queue_ms(finished),
        prefix=decision.prefix,
        spread=decision.spread,
    )


def _queue_ms(finished: Call) -> float | None:
    held = finished.released
    if held is None or held.first_byte_at is None:
        return None
    return max(held.prefill_began_at - held.reserved_at, 0.0) * 1000
