"""Exact matches from the workers' own events take the place of the approximate index."""

from __future__ import annotations

from collections import Counter

import pytest

from router.contract.ids import WorkerId
from router.contract.snapshot import PoolPolicy
from router.core.model import ExactMatch, ExactPrompt, Outcome
from tests.core.scene import MODEL, Scene, prompt, snapshot, worker_id

BLOCK = 16


def exact(tokens: int, held: dict[int, int], *, first: int = 1, unknown: tuple[str, ...] = ()) -> ExactPrompt:
    matches = {worker_id(number): ExactMatch(count) for number, count in held.items()}
    silent = frozenset(map(WorkerId, unknown))
    return ExactPrompt(tokens, list(range(first, first + tokens // BLOCK)), matches, silent)


def test_it_goes_to_the_worker_that_says_it_holds_most() -> None:
    scene = Scene()
    decision = scene.table.choose(scene.request(None, exact=exact(5000, {1: 1600, 3: 4800})), now=scene.now)
    assert (decision.worker, decision.reason) == (worker_id(3), "prefix")
    assert decision.predicted_prompt_tokens == 5000
    assert decision.predicted_hit_tokens == 4800
    assert decision.matched_blocks == 300


@pytest.mark.parametrize(("tokens", "expected"), [(4800, 4784), (4801, 4800), (4816, 4800)])
def test_a_prompt_of_whole_blocks_loses_its_last_one(tokens: int, expected: int) -> None:
    scene = Scene()
    decision = scene.table.choose(scene.request(None, exact=exact(tokens, {2: 4816})), now=scene.now)
    assert (decision.worker, decision.predicted_hit_tokens) == (worker_id(2), expected)


def test_the_approximate_index_has_no_say() -> None:
    scene, text = Scene(), prompt(1, 8000)
    home = scene.serve(text)
    other = next(number for number in range(4) if worker_id(number) != home)
    request = scene.request(text, exact=exact(2000, {other: 1984}))
    decision = scene.table.choose(request, now=scene.now)
    assert (decision.worker, decision.predicted_hit_tokens) == (worker_id(other), 1984)


def test_new_prefixes_have_homes_that_routers_agree_on() -> None:
    one, two = Scene(seed=1), Scene(seed=2)
    used: Counter[str] = Counter()
    for number in range(60):
        asked = exact(3000, {}, first=1 + 1_000_003 * 2**40 * number)
        chosen = [scene.table.choose(scene.request(None, exact=asked), now=scene.now) for scene in (one, two)]
        assert chosen[0].worker == chosen[1].worker
        assert chosen[0].reason == "home"
        used[chosen[0].worker] += 1
    assert len(used) == 4


def test_matches_of_unknown_workers_are_ignored() -> None:
    scene = Scene()
    asked = ExactPrompt(5000, list(range(1, 313)), {worker_id(77): ExactMatch(4800)})
    assert scene.table.choose(scene.request(None, exact=asked), now=scene.now).predicted_hit_tokens == 0


def test_an_exact_request_runs_its_course_and_leaves_the_fingerprints_belief_to_it() -> None:
    scene, text = Scene(), prompt(1, 8000)
    request = scene.request(text, exact=exact(2000, {0: 1600}))
    reservation = scene.table.reserve(scene.table.choose(request, now=scene.now), now=scene.now)
    assert reservation.prefill_tokens == 400
    scene.table.release(reservation, Outcome(False, error="upstream_error", status=502), now=scene.now)
    held = dict(scene.table._index.matches(request.grant.tenant, request.fingerprint.hashes))
    assert held[worker_id(0)] == 12


def test_a_hot_exact_prefix_gets_homes_too() -> None:
    scene = Scene(snapshot(workers=4, pool=PoolPolicy(models=(MODEL,), block_size=BLOCK)))
    held: dict[int, int] = {}
    used: Counter[str] = Counter()
    for _ in range(200):
        request = scene.request(None, exact=exact(12_001, held))
        reservation = scene.table.reserve(scene.table.choose(request, now=scene.now), now=scene.now)
        used[reservation.decision.worker] += 1
        held[int(reservation.decision.worker[-1])] = 12_000
        scene.now += 0.05
        scene.table.first_byte(reservation, now=scene.now)
        scene.now += 0.5
        scene.table.release(
            reservation, Outcome(True, prompt_tokens=12_001, completion_tokens=50, cached_tokens=0), now=scene.now
        )
    assert len(used) >= 2


def test_the_loop_over_many_holders_still_finds_a_light_one() -> None:
    scene = Scene(snapshot(workers=200))
    for number in range(190):
        scene.start_on(number, prompt(number, 20_000))
    asked = exact(16_000, dict.fromkeys(range(200), 15_984))
    decision = scene.table.choose(scene.request(None, exact=asked), now=scene.now)
    assert int(decision.worker.rpartition("w")[2]) >= 190
    assert decision.predicted_hit_tokens == 15_984


def test_a_worker_that_cannot_tell_keeps_what_it_is_believed_to_hold() -> None:
    scene, text = Scene(), prompt(1, 8000)
    silent = scene.serve(text)
    others = [number for number in range(4) if worker_id(number) != silent]
    request = scene.request(text, exact=exact(2000, {others[0]: 320}, unknown=(silent,)))
    decision = scene.table.choose(request, now=scene.now, explain=True)
    assert decision.worker == silent and 1500 < decision.predicted_hit_tokens <= 1984
    assert decision.predicted_hit_tokens % BLOCK == 0
    matched = {candidate.worker: candidate.matched_tokens for candidate in decision.candidates}
    assert [matched[worker_id(number)] for number in others] == [320, 0, 0]


def test_a_belief_does_not_replace_what_a_worker_tells() -> None:
    scene, text = Scene(), prompt(1, 8000)
    home = scene.serve(text)
    other = next(number for number in range(4) if worker_id(number) != home)
    request = scene.request(text, exact=exact(2000, {}, unknown=(worker_id(other),)))
    decision = scene.table.choose(request, now=scene.now, explain=True)
    assert {candidate.matched_tokens for candidate in decision.candidates} == {0}
