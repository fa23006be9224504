"""A worker that lacks a prompt pulls it from another one that holds it: when that pays, and what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.snapshot import PoolPolicy, TenantGrant
from router.contract.telemetry import Candidate
from router.core.explain import sentence
from router.core.model import (
    Decision,
    ExactMatch,
    ExactPrompt,
    Outcome,
    OverBudget,
    Reservation,
    RoutingRequest,
    Shed,
)
from router.core.rates import Attention
from router.core.transfer import PULL_TOKENS_MIN, Hit, Link, Source, pulled_hit
from tests.core.scene import MODEL, Scene, prompt, snapshot, worker_id

BLOCK = 16
KV_BYTES = 128 * 1024
TOKENS = 16_385
HELD = 16_384
RATE = 20_000.0
"""Prefill tokens a second, so that the prompt takes a second with attention."""
FAST = {"kv_bytes_per_token": KV_BYTES, "transfer_gib_per_s": 20.0, "transfer_setup_ms": 5.0, "transfer": "nixl"}
"""2 GiB take 100 ms."""
LINEAR = Attention(1e12)


def scene(workers: int = 2, **pool: object) -> Scene:
    fields: dict[str, Any] = FAST | {"prefill_tokens_per_s": RATE} | pool
    made = Scene(snapshot(workers=workers, pool=PoolPolicy(models=(MODEL,), **fields)))
    made.now += 5
    made.fresh_caches()
    return made


def crowd(made: Scene, number: int, requests: int = 40) -> list[Reservation]:
    """Answers under way on a worker: its prefill is free, it decodes for many."""
    held = [made.start_on(number, bytes(20)) for _ in range(requests)]
    for reservation in held:
        made.table.first_byte(reservation, now=made.now)
    return held


def asked(
    made: Scene,
    matches: dict[int, int],
    *,
    tokens: int = TOKENS,
    unknown: frozenset[int] = frozenset(),
    exclude: frozenset[int] = frozenset(),
    may_pull: bool = True,
    session: str | None = None,
    admitted: bool = False,
) -> Decision:
    grant = made.grant()
    found = {worker_id(number): ExactMatch(held) for number, held in matches.items()}
    exact = ExactPrompt(
        tokens, list(range(1, tokens // BLOCK + 1)), found, frozenset(worker_id(number) for number in unknown)
    )
    fingerprint = made.table.fingerprint(grant, prompt(7, tokens * 4), template="")  # type: ignore[arg-type]
    request = RoutingRequest(
        "r", grant, fingerprint, session=session, exclude=frozenset(worker_id(number) for number in exclude),
        exact=exact, may_pull=may_pull and made.table.may_pull(grant.pool, now=made.now), admitted=admitted,
    )  # fmt: skip
    return made.table.choose(request, now=made.now, explain=True)


def of(decision: Decision, number: int) -> Candidate:
    return next(each for each in decision.candidates if each.worker == worker_id(number))


def source_of(decision: Decision) -> str | None:
    return None if decision.source is None else decision.source.worker


def test_an_idle_holder_is_asked_itself() -> None:
    decision = asked(scene(), {0: HELD})
    assert (decision.worker, source_of(decision)) == (worker_id(0), None)


def test_the_worker_beside_a_crowded_holder_pulls_from_it() -> None:
    made = scene()
    crowd(made, 0)
    decision = asked(made, {0: HELD})
    assert (decision.worker, source_of(decision)) == (worker_id(1), worker_id(0))
    assert (decision.predicted_hit_tokens, decision.loaded_tokens, decision.matched_blocks) == (HELD, HELD, 0)
    chosen, holder = of(decision, 1), of(decision, 0)
    moved_ms = TOKENS * KV_BYTES / (20 * 1024**3) * 1000 + 5.0
    assert chosen.transfer_ms == pytest.approx(moved_ms + holder.queue_ms), "through the holder's queue"
    assert holder.queue_ms > 0 and holder.transfer_ms == 0 and holder.pulled_tokens == 0
    assert chosen.pulled_tokens == HELD
    terms = chosen.saved_ms - chosen.queue_ms - chosen.pressure_ms - chosen.imbalance_ms - chosen.transfer_ms
    assert chosen.net_ms == pytest.approx(terms)
    assert decision.predicted_ttft_ms == pytest.approx(chosen.transfer_ms, abs=1.0)
    assert f"w1: pulls 16,384 tokens from w0 in {chosen.transfer_ms:,.0f} ms, saves" in sentence(decision)
    decision.candidates = []
    assert "w1: pulls 16,384 tokens from w0; " in sentence(decision)


@pytest.mark.parametrize(
    "why",
    [
        {"pool": {"transfer": ""}},
        {"pool": {"transfer_gib_per_s": None}},
        {"pool": {"transfer_gib_per_s": 0.5}},
        {"pool": {"transfer_setup_ms": 60_000.0}},
        {"pool": {"routing": "least_outstanding"}},
        {"may_pull": False},
        {"unknown": frozenset({0})},
        {"unknown": frozenset({1})},
        {"exclude": frozenset({0})},
        {"state": "drain"},
        {"state": "maintenance"},
        {"matches": {}},
        {"matches": {0: PULL_TOKENS_MIN - BLOCK}},
        {"matches": {0: HELD, 1: HELD - PULL_TOKENS_MIN + BLOCK}},
    ],
)
def test_it_computes_where_a_pull_is_not_possible_or_does_not_pay(why: dict[str, Any]) -> None:
    made = scene(**why.pop("pool", {}))
    crowd(made, 0)
    if state := why.pop("state", ""):
        made.set_state(0, state)
    decision = asked(made, why.pop("matches", {0: HELD}), **why)
    assert (decision.worker, source_of(decision)) == (worker_id(1), None)
    assert of(decision, 1).pulled_tokens == of(decision, 1).transfer_ms == 0


def test_an_ejected_holder_is_no_source() -> None:
    made = scene(workers=3)
    crowd(made, 0)
    for _ in range(5):
        made.table.worker_failed(worker_id(0), now=made.now)
    assert source_of(asked(made, {0: HELD})) is None


def test_of_several_holders_the_one_is_asked_that_saves_most_beyond_its_queue() -> None:
    made = scene(workers=3)
    crowd(made, 0)
    crowd(made, 1)
    made.start_on(0, prompt(3, 160_000))  # 40,000 tokens to compute first
    decision = asked(made, {0: HELD, 1: HELD - 1024})
    assert (decision.worker, source_of(decision)) == (worker_id(2), worker_id(1))


def test_what_the_pulling_worker_holds_itself_is_not_moved() -> None:
    source = Source(worker_id(0), "", HELD, 1.0, 0.0, 0.0)
    link = Link(KV_BYTES, 20.0)
    moved = [
        pulled_hit(
            Hit(blocks, blocks * BLOCK), source, prompt_tokens=TOKENS, block_tokens=BLOCK, tokens_per_s=RATE,
            link=link, attention=LINEAR,
        )
        for blocks in (0, 512)
    ]  # fmt: skip
    assert [hit.loaded_tokens for hit in moved] == [HELD, HELD - 512 * BLOCK]
    assert moved[0].transfer_ms / moved[1].transfer_ms == pytest.approx(TOKENS / (TOKENS - 512 * BLOCK))


@given(
    st.integers(1, 20_000), st.integers(0, 1250), st.integers(0, 20_000), st.floats(10, 1e6), st.floats(0, 1e4),
    st.builds(Link, st.integers(1, 10**6), st.one_of(st.none(), st.floats(0.001, 100)), st.floats(0, 1000)),
)  # fmt: skip
def test_a_pull_never_costs_more_than_computing_and_never_covers_the_prompt(
    prompt_tokens: int, blocks: int, held: int, rate: float, wait_ms: float, link: Link
) -> None:
    usable = (prompt_tokens - 1) // BLOCK
    local = Hit(min(blocks, usable), min(blocks, usable) * BLOCK)
    source = Source(worker_id(0), "", min(held // BLOCK, usable) * BLOCK, 1.0, wait_ms, wait_ms)
    hit = pulled_hit(
        local, source, prompt_tokens=prompt_tokens, block_tokens=BLOCK, tokens_per_s=rate, link=link, attention=LINEAR
    )
    assert local.tokens <= hit.tokens < prompt_tokens
    assert hit.tokens == hit.blocks * BLOCK + hit.loaded_tokens
    assert hit.transfer_ms <= (hit.tokens - local.tokens) / rate * 1000.0 + 1e-6
    assert hit is local or (hit.pulled and hit.transfer_ms >= wait_ms)


def test_another_home_of_a_hot_prefix_is_filled_by_a_pull() -> None:
    made = scene(workers=4)
    for _ in range(60):
        made.finish(made.table.reserve(asked(made, {}), now=made.now), cached=0, prompt=TOKENS, ttft_s=0.99)
        made.now += 1  # no worker tells of these prompts: nothing is expected of them any more
    found = [asked(made, {0: HELD}) for _ in range(4)]
    filled = [decision for decision in found if decision.worker != worker_id(0)]
    assert filled and {(decision.reason, source_of(decision)) for decision in filled} == {("home", worker_id(0))}
    chosen = of(filled[0], int(filled[0].worker[-1]))
    assert chosen.replica_ms == pytest.approx(chosen.transfer_ms), "the pull is for all that follow"


def test_its_load_is_the_tail_on_the_source_and_nothing_where_the_answer_comes_from() -> None:
    made = scene()
    crowd(made, 0)
    decision = asked(made, {0: HELD}, tokens=HELD + 4096, session="s")
    main, source = made.table.reserve(decision, now=made.now), made.table.reserve_source(decision, now=made.now)
    assert (main.prefill_tokens, source.prefill_tokens) == (1, 4096)
    assert source.decision.worker == worker_id(0)
    crowded = made.table.state(now=made.now).worker_outstanding
    assert crowded == {worker_id(0): 41, worker_id(1): 1}
    outcome = Outcome(True, prompt_tokens=HELD + 4096, completion_tokens=1, cached_tokens=HELD)
    made.table.pulled(main, source, outcome, now=made.now)
    made.table.release(main, outcome, now=made.now)
    assert made.table.state(now=made.now).worker_outstanding == {worker_id(0): 40, worker_id(1): 0}
    again = asked(made, {}, tokens=HELD + 4096, session="s")
    assert again.reason == "session" and again.worker == worker_id(1), "the session is where the answer came from"


def test_a_pull_that_failed_leaves_no_belief_and_gives_the_budget_back() -> None:
    made = scene()
    tenants = {tenant: TenantGrant(prefill_tokens_per_s=10.0, prefill_burst_tokens=20_000) for tenant in ("alice",)}
    made.publish(msgspec.structs.replace(made.policy, tenants=made.policy.tenants | tenants))
    crowd(made, 0)
    failed = Outcome(False, "upstream_error", 502)
    for _ in range(5):
        decision = asked(made, {0: HELD}, tokens=HELD + 4096)
        main, source = made.table.reserve(decision, now=made.now), made.table.reserve_source(decision, now=made.now)
        made.table.release(source, failed, now=made.now)
        made.table.release(main, failed, now=made.now)
    assert asked(made, {0: HELD}).request is not None, "the budget of 20,000 tokens still admits it"
    plain = made.request(prompt(7, (HELD + 4096) * 4))
    assert made.table.choose(plain, now=made.now).predicted_hit_tokens == 0


def test_what_a_pull_spared_is_not_charged_and_its_tail_once() -> None:
    made = scene()
    grants = made.policy.tenants | {"alice": TenantGrant(prefill_tokens_per_s=0.001, prefill_burst_tokens=5000)}
    made.publish(msgspec.structs.replace(made.policy, tenants=grants))
    crowd(made, 0)
    for _ in range(2):
        pulled(made, asked(made, {0: HELD - 2047}), cached=HELD - 2047)
    assert asked(made, {0: HELD}).source is not None, "2 × 2,048 of 5,000 tokens were charged, and a few of the crowd"


def test_a_request_decided_anew_is_refused_by_no_limit_that_let_it_in() -> None:
    made = scene(workers=1)
    made.publish(msgspec.structs.replace(
        made.policy,
        namespaces={
            name: msgspec.structs.replace(policy, shed_over_slo=True, ttft_slo_ms=100.0)
            for name, policy in made.policy.namespaces.items()
        },
        tenants=made.policy.tenants | {"alice": TenantGrant(prefill_tokens_per_s=0.001, prefill_burst_tokens=30_000)},
    ))  # fmt: skip
    made.start_on(0, prompt(3, 160_000))
    with pytest.raises(OverBudget):
        asked(made, {})
    made.publish(msgspec.structs.replace(made.policy, tenants={"alice": TenantGrant(), "charlie": TenantGrant()}))
    with pytest.raises(Shed):
        asked(made, {})
    assert asked(made, {}, admitted=True).worker == worker_id(0)


def test_after_failures_in_a_row_none_is_tried_for_a_while() -> None:
    made = scene()
    pool = made.grant().pool
    for _ in range(5):
        assert made.table.may_pull(pool, now=made.now)
        made.table.pull_ended(pool, ok=False, now=made.now)
    assert not made.table.may_pull(pool, now=made.now + 29)
    assert made.table.may_pull(pool, now=made.now + 31)
    made.table.pull_ended(pool, ok=True, now=made.now + 31)
    assert made.table.may_pull(pool, now=made.now + 32)


def pulled(made: Scene, decision: Decision, *, cached: int, repeated: int | None = None) -> tuple[str, str]:
    """Isolation of the source's answer, and of the one that repeats its cached tokens or tells of others."""
    main, source = made.table.reserve(decision, now=made.now), made.table.reserve_source(decision, now=made.now)
    made.table.first_byte(source, now=made.now)
    outcome = Outcome(True, prompt_tokens=TOKENS, completion_tokens=1, cached_tokens=cached)
    made.table.pulled(main, source, outcome, now=made.now)
    assert main.pulled is not None
    made.now += 0.1
    made.table.first_byte(main, now=made.now)
    told = Outcome(True, prompt_tokens=TOKENS, completion_tokens=9, cached_tokens=repeated or cached)
    isolation = made.table.release(main, told, now=made.now).isolation
    made.now += 1  # nobody tells of its blocks: they are expected no longer
    return main.pulled.isolation, isolation


def test_cached_tokens_are_judged_where_they_were_cached() -> None:
    def judged(held: int, **told: int) -> tuple[str, str]:
        made = scene()
        for reservation in crowd(made, 0):
            made.table._fleet.workers[worker_id(0)].load.outstanding += 1  # stays crowded, by requests of others
            made.finish(reservation, cached=0)
        return pulled(made, asked(made, {0: held}), **told)

    assert judged(HELD, cached=HELD) == ("ok", "ok"), "the source told of them"
    assert judged(HELD - 1600, cached=HELD) == ("violation", "violation")
    assert judged(HELD, cached=HELD - 1600, repeated=HELD) == ("ok", "violation"), "more than the source had"


def test_a_pull_teaches_nothing_about_the_worker_that_pulls() -> None:
    made = scene()
    crowd(made, 0)
    before = made.table.state(now=made.now)
    pulled(made, asked(made, {0: HELD}), cached=HELD)
    after = made.table.state(now=made.now)
    assert after.worker_prefill_tokens_per_s[worker_id(1)] == before.worker_prefill_tokens_per_s[worker_id(1)]
    assert after.worker_credit[worker_id(1)] == 1.0


def test_a_source_that_delivers_less_than_it_told_loses_its_credit() -> None:
    made = scene()
    crowd(made, 0)
    for _ in range(10):
        pulled(made, asked(made, {0: HELD}), cached=0)
    credit = made.table.state(now=made.now).worker_credit
    assert credit[worker_id(0)] < 0.7 and credit[worker_id(1)] == 1.0


@dataclass
class _Leg:
    main: Reservation
    source: Reservation | None


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["begin", "answered", "failed", "left", "ends"]), st.integers(0, 9))))
def test_whatever_happens_in_whatever_order_both_ledgers_balance(story: list[tuple[str, int]]) -> None:
    made = scene(workers=3)
    crowded = crowd(made, 0, requests=20)
    legs: list[_Leg] = []
    for what, which in story:
        made.now += 0.01
        if what == "begin":
            decision = asked(made, {0: HELD})
            source = made.table.reserve_source(decision, now=made.now) if decision.source is not None else None
            legs.append(_Leg(made.table.reserve(decision, now=made.now), source))
        elif legs:
            _go_on(made, legs[which % len(legs)], what)
    for leg in legs:
        _go_on(made, leg, "left")
    for reservation in crowded:
        made.table.release(reservation, Outcome(True), now=made.now)
    workers = made.table._fleet.workers.values()
    assert {(each.load.outstanding, each.load.decoding, each.load.pending_tokens) for each in workers} == {(0, 0, 0)}
    assert made.table._fleet.pools[made.grant().pool].outstanding == 0


def _go_on(made: Scene, leg: _Leg, what: str) -> None:
    good = Outcome(True, prompt_tokens=TOKENS, completion_tokens=1, cached_tokens=HELD)
    bad = Outcome(False, "upstream_error", 502)
    if what == "answered" and leg.source is not None:
        made.table.pulled(leg.main, leg.source, good, now=made.now)
    elif what == "failed" and leg.source is not None:
        made.table.release(leg.source, bad, now=made.now)
    elif what == "ends":
        made.table.first_byte(leg.main, now=made.now)
        made.table.release(leg.main, good, now=made.now)
    elif what == "left":
        if leg.source is not None:
            made.table.release(leg.source, bad, now=made.now)
        made.table.release(leg.main, bad, now=made.now)
