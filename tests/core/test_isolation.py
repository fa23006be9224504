"""The isolation bound: S8."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.snapshot import PoolPolicy
from router.core.isolation import history_complete
from router.core.limits import CoreLimits
from router.core.model import Outcome
from tests.core.scene import MODEL, Scene, namespace_id, prompt, snapshot, worker_id


def watched(**options: object) -> Scene:
    """A scene whose workers' caches are known to have begun empty after the router booted."""
    scene = Scene(**options)  # type: ignore[arg-type]
    scene.now += 5
    scene.fresh_caches()
    return scene


def test_nothing_may_be_cached_for_a_namespace_that_sent_nothing() -> None:
    scene = watched()
    verdict = scene.finish(scene.start_on(0, prompt(1, 2000)), cached=16)
    assert (verdict.isolation, verdict.isolation_bound_tokens) == ("violation", 0)


def test_an_own_earlier_prompt_may_be_cached() -> None:
    scene, text = watched(), prompt(1, 8000)
    assert scene.finish(scene.start_on(0, text), cached=0).isolation == "ok"
    assert scene.finish(scene.start_on(0, text), cached=1984).isolation == "ok"


def test_a_worker_that_ignores_salts_is_flagged() -> None:
    """Alice's prompt is cached on the worker; Charlie, who has other history there, sends the same one."""
    scene, text = watched(), prompt(1, 8000)
    scene.finish(scene.start_on(0, text, "alice"), cached=0)
    scene.finish(scene.start_on(0, prompt(2, 8000), "charlie"), cached=0)
    verdict = scene.finish(scene.start_on(0, text, "charlie"), cached=1984)
    assert verdict.isolation == "violation"
    assert verdict.isolation_bound_tokens == 511 + scene.limits.template_tokens_max


def test_history_on_another_worker_allows_nothing() -> None:
    scene, text = watched(), prompt(1, 8000)
    scene.finish(scene.start_on(0, text), cached=0)
    assert scene.finish(scene.start_on(1, text), cached=1984).isolation == "violation"


def test_a_shared_head_allows_that_head_and_not_the_whole() -> None:
    scene, head = watched(), prompt(1, 1024)
    scene.finish(scene.start_on(0, prompt(2, 40_000, head=head)), cached=0)
    again = scene.start_on(0, prompt(3, 40_000, head=head))
    assert scene.finish(again, cached=256).isolation == "ok"
    third = scene.start_on(0, prompt(4, 40_000, head=head))
    assert scene.finish(third, cached=9984).isolation == "violation"


def test_generated_tokens_of_an_earlier_turn_may_be_cached() -> None:
    scene, question = watched(), prompt(1, 2048)
    first = scene.start_on(0, question)
    scene.finish(first, cached=0, prompt=512, completion=4000)
    # The reply is text of the next turn; its tokens were cached while they were generated.
    second = scene.start_on(0, question + prompt(2, 18_000))
    assert scene.finish(second, cached=4480, prompt=5000).isolation == "ok"
    third = scene.start_on(0, question + prompt(3, 18_000))
    assert scene.finish(third, cached=4600, prompt=5000).isolation == "violation"


def test_a_reply_still_under_way_makes_a_longer_hit_unknown() -> None:
    scene, question = watched(), prompt(1, 2048)
    scene.table.first_byte(scene.start_on(0, question), now=scene.now)
    assert scene.finish(scene.start_on(0, question + prompt(2, 18_000)), cached=4480).isolation == "unknown"


def test_a_request_that_ended_without_usage_makes_a_longer_hit_unknown() -> None:
    scene, question = watched(), prompt(1, 2048)
    broken = scene.start_on(0, question)
    scene.table.release(broken, Outcome(False, error="client_disconnect"), now=scene.now)
    assert scene.finish(scene.start_on(0, question + prompt(2, 18_000)), cached=4480).isolation == "unknown"
    assert scene.finish(scene.start_on(0, prompt(3, 18_000)), cached=4480).isolation == "violation"


def test_a_rival_that_starts_later_and_runs_first_may_fill_the_cache() -> None:
    scene, text = watched(), prompt(1, 8000)
    waiting = scene.start_on(0, text)
    scene.finish(scene.start_on(0, text), cached=0)
    assert scene.finish(waiting, cached=1984).isolation == "ok"


def test_a_request_after_the_first_byte_explains_nothing() -> None:
    scene, text = watched(), prompt(1, 8000)
    early = scene.start_on(0, text)
    scene.table.first_byte(early, now=scene.now)
    scene.finish(scene.start_on(0, text), cached=1984)
    assert scene.finish(early, cached=1984).isolation == "violation"


def test_a_crowd_of_rivals_is_unknown_and_bounded() -> None:
    scene = watched(limits=CoreLimits(rivals_max=4))
    waiting = [scene.start_on(0, prompt(seed, 4000)) for seed in range(8)]
    assert scene.finish(waiting[0], cached=900).isolation == "unknown"


def test_short_prompts_count_by_what_they_and_their_replies_were() -> None:
    scene = watched()
    scene.finish(scene.start_on(0, b"tell me everything"), cached=0, prompt=12, completion=3000)
    text = b"tell me everything" + prompt(1, 20_000)
    assert scene.finish(scene.start_on(0, text), cached=3008).isolation == "ok"
    assert scene.finish(scene.start_on(0, prompt(2, 20_000)), cached=3100).isolation == "violation"


def test_no_report_is_nothing_to_check() -> None:
    scene = watched()
    assert scene.finish(scene.start_on(0, prompt(1, 2000)), cached=None).isolation == ""


def test_a_prompt_without_text_is_never_accused() -> None:
    scene = watched()
    assert scene.finish(scene.start_on(0, None), cached=500).isolation == "unknown"
    assert scene.finish(scene.start_on(0, None), cached=0).isolation == "ok"


def test_two_models_of_one_namespace_make_a_longer_hit_unknown() -> None:
    """Two names may stand for one set of weights, and then share a cache."""
    scene, text = watched(policy=snapshot(pool=PoolPolicy(models=(MODEL, "alias")))), prompt(1, 8000)
    scene.finish(scene.start_on(0, text), cached=0)
    grant = scene.grant(model="alias")
    request = scene.request(text)
    other = type(request)("r", grant, scene.table.fingerprint(grant, text, template=request.template))
    decision = scene.table.choose(other, now=scene.now)
    decision.worker = worker_id(0)
    assert scene.finish(scene.table.reserve(decision, now=scene.now), cached=1984).isolation == "unknown"


def bound_broken(scene: Scene) -> str:
    """The verdict on a hit that no history explains: the clock makes each call's prompt its own."""
    scene.now += 0.001
    return scene.finish(scene.start_on(0, prompt(int(scene.now * 1000), 8000)), cached=1984).isolation


def test_history_is_not_complete_while_the_caches_birth_is_unknown() -> None:
    assert bound_broken(Scene()) == "unknown"


def test_history_is_not_complete_for_a_cache_older_than_the_router() -> None:
    scene = Scene(booted_at=1000.0)
    scene.fresh_caches()
    assert bound_broken(scene) == "unknown"


def test_history_is_not_complete_while_another_router_serves_nor_for_what_it_left() -> None:
    scene = watched()
    scene.table.other_routers = 1
    assert bound_broken(scene) == "unknown"
    scene.table.other_routers = 0
    assert bound_broken(scene) == "unknown"
    scene.now += 5
    scene.fresh_caches()
    assert bound_broken(scene) == "violation"


def test_an_unknown_number_of_routers_is_unknown() -> None:
    scene = watched()
    scene.table.other_routers = None
    assert bound_broken(scene) == "unknown"


def test_a_generation_that_began_after_boot_is_complete_whatever_the_cache_holds() -> None:
    scene = Scene()
    name = namespace_id("alice")
    scene.now += 5
    rotated = msgspec.structs.replace(
        scene.policy.namespaces[name], generation=2, generation_nonce="second", generation_at=scene.now
    )
    scene.publish(msgspec.structs.replace(scene.policy, namespaces={**scene.policy.namespaces, name: rotated}))
    assert bound_broken(scene) == "violation"


def test_eviction_from_the_index_makes_history_unknown_for_that_tenant_only() -> None:
    scene = watched(limits=CoreLimits(index_bytes_max=128 * 3000))
    for seed in range(400):
        scene.finish(scene.start_on(1, prompt(seed, 8000), "alice"), cached=0)
    alice = scene.finish(scene.start_on(1, prompt(9001, 8000), "alice"), cached=1984)
    charlie = scene.finish(scene.start_on(1, prompt(9001, 8000), "charlie"), cached=1984)
    assert (alice.isolation, charlie.isolation) == ("unknown", "violation")


def test_a_restarted_worker_keeps_its_history_so_that_nobody_is_accused() -> None:
    scene, text = watched(), prompt(1, 8000)
    scene.finish(scene.start_on(0, text), cached=0)
    scene.table.worker_forgotten(worker_id(0))
    assert scene.finish(scene.start_on(0, text), cached=1984).isolation == "ok"


@pytest.mark.parametrize(
    ("began_at", "lost_at", "others", "complete"),
    [
        (100.0, [90.0, None], 0, True),
        (100.0, [99.5], 0, False),
        (100.0, [None, 101.0], 0, False),
        (None, [], 0, False),
        (100.0, [90.0], 1, False),
        (100.0, [90.0], None, False),
    ],
)
def test_history_completeness(
    began_at: float | None, lost_at: list[float | None], others: int | None, complete: bool
) -> None:
    assert history_complete(began_at=began_at, lost_at=lost_at, other_routers=others) is complete


class TokenCache:
    """One worker's cache, by token: a token is 1–7 bytes of text, found from the text alone. Nothing is evicted."""

    def __init__(self, *, salted: bool) -> None:
        self.salted = salted
        self.sequences: dict[str, list[list[bytes]]] = {}

    def run(self, tenant: str, text: bytes, reply: bytes) -> tuple[int, int, int]:
        """(prompt, completion, cached) tokens; the prompt and its reply are cached afterwards."""
        sequences = self.sequences.setdefault(tenant if self.salted else "", [])
        tokens = tokenised(text)
        cached = max((common(tokens, each) for each in sequences), default=0)
        cached = min(cached, len(tokens) - 1) // 16 * 16
        whole = tokenised(text + reply)
        sequences.append(tokens + whole[common(tokens, whole) :] if len(whole) > len(tokens) else tokens)
        return len(tokens), max(len(whole) - len(tokens), 1), cached


def tokenised(text: bytes) -> list[bytes]:
    tokens, at = [b"<bos>"], 0
    while at < len(text):
        size = 1 + text[at] % 7
        tokens.append(text[at : at + size])
        at += size
    return tokens


def common(left: list[bytes], right: list[bytes]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def converse(scene: Scene, caches: list[TokenCache], rng: random.Random, *, turns: int, head_bytes: int) -> list[str]:
    """Mixed conversations of two tenants over shared heads, several under way at once; returns the verdicts."""
    heads = [rng.randbytes(rng.randrange(head_bytes)) for _ in range(3)]
    threads = [(tenant, head) for head in heads for tenant in ("alice", "charlie")]
    verdicts, under_way = [], []
    for _ in range(turns):
        at = rng.randrange(len(threads))
        tenant, text = threads[at]
        text = text + rng.randbytes(rng.randrange(0, 700)) if rng.random() < 0.9 else heads[at // 2]
        worker = rng.randrange(2)
        reply = rng.randbytes(rng.choice([50, 1500, 9000]))
        under_way.append((scene.start_on(worker, text, tenant), worker, tenant, text, reply))
        threads[at] = (tenant, (text + reply)[: head_bytes + 20_000])
        while len(under_way) > rng.randrange(0, 4):
            reservation, worker, tenant, text, reply = under_way.pop(rng.randrange(len(under_way)))
            asked, answered, cached = caches[worker].run(tenant, text, reply)
            verdict = scene.finish(reservation, cached=cached, prompt=asked, completion=answered)
            verdicts.append(verdict.isolation)
    return verdicts


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_an_honest_worker_is_never_accused(seed: int) -> None:
    scene = watched()
    caches = [TokenCache(salted=True) for _ in range(4)]
    verdicts = converse(scene, caches, random.Random(seed), turns=40, head_bytes=1500)
    assert "violation" not in verdicts
    assert verdicts.count("ok") > 20


def test_workers_without_salts_are_accused_soon() -> None:
    accused = 0
    for seed in range(10):
        caches = [TokenCache(salted=False) for _ in range(4)]
        accused += "violation" in converse(watched(), caches, random.Random(seed), turns=40, head_bytes=12_000)
    assert accused >= 9
