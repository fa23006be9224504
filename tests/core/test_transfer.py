"""Local hit, remote pull or recompute: S1.5, S3.5."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.snapshot import PoolPolicy
from router.core.explain import sentence
from router.core.model import ExactMatch, ExactPrompt
from router.core.rates import Attention
from router.core.transfer import GIB, HOST_GIB_PER_S, Hit, Link, exact_hit, transfer_ms, worth_pulling
from tests.core.scene import MODEL, Scene, snapshot, worker_id

BLOCK = 16
LINEAR = Attention(1e12)
"""A model whose prefill grows with its tokens alone: times are those of the brief."""
KV_BYTES = 128 * 1024
"""A token of an 8B model: 32 layers × 8 heads × 128 × 2 (K and V) × 2 bytes."""


def tokens_of(hit: Hit) -> tuple[int, int, int]:
    return hit.blocks, hit.tokens, hit.loaded_tokens


def test_s3_5_two_gib_over_twenty_gib_a_second_are_not_worth_a_60_ms_recompute() -> None:
    pull_ms = transfer_ms(2 * GIB, bytes_per_s=20 * GIB)
    assert pull_ms == pytest.approx(100.0)
    assert not worth_pulling(pull_ms=pull_ms, recompute_ms=60.0)
    assert worth_pulling(pull_ms=pull_ms, recompute_ms=160.0)


def test_s3_5_as_a_decision_of_a_worker() -> None:
    """16,384 tokens of 128 KiB are 2 GiB; over 20 GiB/s they take 100 ms."""
    held = ExactMatch(0, 0, 16_384)
    link = Link(KV_BYTES, 20.0)

    def hit(recompute_ms: float) -> Hit:
        rate = 16_384 / recompute_ms * 1000.0
        return exact_hit(held, prompt_tokens=16_385, block_tokens=BLOCK, tokens_per_s=rate, link=link, attention=LINEAR)

    assert tokens_of(hit(60.0)) == (0, 0, 0)
    pulled = hit(160.0)
    assert (pulled.tokens, pulled.loaded_tokens) == (16_384, 16_384)
    assert pulled.transfer_ms == pytest.approx(100.0)


def test_behind_a_long_context_a_pull_pays_that_does_not_at_the_head() -> None:
    """4,096 tokens take 25 ms to pull and 20 ms to compute, but 63 ms behind 81,920 others."""
    link, rate = Link(KV_BYTES, 20.0), 4096 / 0.020

    def hit(held: ExactMatch) -> Hit:
        return exact_hit(
            held, prompt_tokens=90_000, block_tokens=BLOCK, tokens_per_s=rate, link=link, attention=Attention(40_000.0)
        )

    assert hit(ExactMatch(0, 0, 4096)).loaded_tokens == 0
    assert hit(ExactMatch(81_920, 0, 4096)).loaded_tokens == 4096


def test_set_up_time_counts_and_a_tie_is_recomputed() -> None:
    assert transfer_ms(1e9, bytes_per_s=1e9, setup_ms=5.0) == pytest.approx(1005.0)
    assert not worth_pulling(pull_ms=60.0, recompute_ms=60.0)


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0])
def test_a_bandwidth_that_is_none_is_refused(bytes_per_s: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        transfer_ms(1.0, bytes_per_s=bytes_per_s)


@pytest.mark.parametrize(
    ("prompt_tokens", "device_tokens", "expected"),
    [(160, 160, 144), (161, 160, 160), (175, 160, 160), (16, 16, 0), (15, 0, 0), (1000, 333, 320), (1, 0, 0)],
)
def test_the_last_token_is_always_computed_and_only_whole_blocks_hit(
    prompt_tokens: int, device_tokens: int, expected: int
) -> None:
    hit = exact_hit(
        ExactMatch(device_tokens),
        prompt_tokens=prompt_tokens,
        block_tokens=BLOCK,
        tokens_per_s=1e4,
        link=None,
        attention=LINEAR,
    )
    assert tokens_of(hit) == (expected // BLOCK, expected, 0)


def test_tiers_follow_each_other_and_stop_where_one_is_not_worth_it() -> None:
    held = ExactMatch(1600, 1600, 1600)
    slow = Link(KV_BYTES, 0.01, 5.0)
    hit = exact_hit(held, prompt_tokens=10_000, block_tokens=BLOCK, tokens_per_s=1e4, link=slow, attention=LINEAR)
    assert (hit.blocks, hit.tokens, hit.loaded_tokens) == (100, 3200, 1600)
    assert hit.transfer_ms == pytest.approx(1600 * KV_BYTES / (HOST_GIB_PER_S * GIB) * 1000)
    fast = Link(KV_BYTES, 20.0, 5.0)
    assert (
        exact_hit(held, prompt_tokens=10_000, block_tokens=BLOCK, tokens_per_s=1e4, link=fast, attention=LINEAR).tokens
        == 4800
    )


def test_without_a_connector_only_the_device_counts() -> None:
    held = ExactMatch(160, 1600, 1600)
    hit = exact_hit(held, prompt_tokens=9999, block_tokens=BLOCK, tokens_per_s=1e4, link=None, attention=LINEAR)
    assert tokens_of(hit) == (10, 160, 0)
    no_remote = exact_hit(
        ExactMatch(160, 0, 1600),
        prompt_tokens=9999,
        block_tokens=BLOCK,
        tokens_per_s=1e4,
        link=Link(KV_BYTES, None),
        attention=LINEAR,
    )
    assert tokens_of(no_remote) == (10, 160, 0)
    assert hit.transfer_ms == no_remote.transfer_ms == 0.0


@given(
    st.integers(1, 20_000),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
    st.floats(10, 1e6),
    st.one_of(st.none(), st.builds(Link, st.integers(1, 10**6), st.floats(0.001, 100), st.floats(0, 1000))),
)
def test_a_hit_never_costs_more_than_computing_and_never_covers_the_prompt(
    prompt: int, device: int, host: int, remote: int, rate: float, link: Link | None
) -> None:
    hit = exact_hit(
        ExactMatch(device, host, remote),
        prompt_tokens=prompt,
        block_tokens=BLOCK,
        tokens_per_s=rate,
        link=link,
        attention=LINEAR,
    )
    assert hit.tokens % BLOCK == 0
    assert 0 <= hit.blocks * BLOCK <= hit.tokens < prompt
    assert hit.tokens == hit.blocks * BLOCK + hit.loaded_tokens <= device + host + remote
    assert hit.transfer_ms <= hit.loaded_tokens / rate * 1000.0 + 1e-6


def shared_tier(**pool: object) -> Scene:
    return Scene(snapshot(workers=2, pool=PoolPolicy(models=(MODEL,), **pool)))  # type: ignore[arg-type]


def exact(tokens: int, matches: dict[int, ExactMatch]) -> ExactPrompt:
    found = {worker_id(number): match for number, match in matches.items()}
    return ExactPrompt(tokens, list(range(1, tokens // BLOCK + 1)), found)


def test_the_busy_holder_loses_to_an_idle_worker_that_can_pull() -> None:
    prompt = exact(16_385, {0: ExactMatch(16_384), 1: ExactMatch(0, 0, 16_384)})
    pool = {"kv_bytes_per_token": KV_BYTES, "transfer_gib_per_s": 20.0, "transfer_setup_ms": 2.0}
    scene = shared_tier(**pool)
    scene.start_on(0, bytes(20_000))
    decision = scene.table.choose(scene.request(None, exact=prompt), now=scene.now, explain=True)
    assert (decision.worker, decision.loaded_tokens) == (worker_id(1), 16_384)
    own = next(each for each in decision.candidates if each.worker == worker_id(1))
    assert own.transfer_ms == pytest.approx(102.0)
    assert own.net_ms == pytest.approx(own.saved_ms - own.pressure_ms - own.transfer_ms)
    assert decision.predicted_ttft_ms == pytest.approx(102.1, abs=0.1)
    assert "w1: holds 16,384 tokens, of which it loads 16,384 in 102 ms, saves" in sentence(decision)


def test_a_pool_without_a_connector_recomputes() -> None:
    prompt = exact(16_385, {1: ExactMatch(0, 8192, 8192)})
    scene = shared_tier()
    decision = scene.table.choose(scene.request(None, exact=prompt), now=scene.now)
    assert (decision.predicted_hit_tokens, decision.loaded_tokens) == (0, 0)
    policy = msgspec.structs.replace(scene.policy.pools["llama"], kv_bytes_per_token=KV_BYTES)
    scene.publish(msgspec.structs.replace(scene.policy, pools={"llama": policy}))
    decision = scene.table.choose(scene.request(None, exact=prompt), now=scene.now)
    assert (decision.worker, decision.loaded_tokens) == (worker_id(1), 8192)
