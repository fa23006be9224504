"""Prompts under way count in exact mode: a burst of equal ones stays together, and nothing of them stays behind."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.ids import WorkerId
from router.contract.snapshot import PoolPolicy
from router.core.exact import expected as expected_module
from router.core.exact.expected import CONFIRMED_WITHIN_S, EXPECTED_MAX, READ_WITHIN_S, Expectation, Expected
from router.core.explain import sentence
from router.core.hints import ANCHORS
from router.core.model import Decision, ExactMatch, ExactPrompt, Outcome, Reservation
from tests.core.scene import MODEL, Scene, prompt, snapshot, worker_id

BLOCK = 16
HEAD = 512
"""Blocks that the burst's prompts share: 8,192 tokens."""
FAILED = Outcome(False, error="upstream_error", status=502)


def chain(tail: int, *, head: int = HEAD, own: int = 8, family: int = 1) -> list[int]:
    """Chained hashes as prompts with one head and tails of their own have them: what a hash stands for is its place."""
    tails = [(family << 40) + (tail + 1 << 26) + (head << 13) + block for block in range(own)]
    return [(family << 40) + block for block in range(head)] + tails


def asked(hashes: list[int], told: dict[int, ExactMatch] | None = None, unknown: tuple[int, ...] = ()) -> ExactPrompt:
    matches = {worker_id(number): match for number, match in (told or {}).items()}
    return ExactPrompt(len(hashes) * BLOCK + 1, hashes, matches, frozenset(worker_id(number) for number in unknown))


def scene(workers: int = 16) -> Scene:
    return Scene(snapshot(workers=workers, pool=PoolPolicy(models=(MODEL,), block_size=BLOCK)))


def send(made: Scene, exact: ExactPrompt, text: bytes | None = None) -> Reservation:
    return made.table.reserve(choose(made, exact, text), now=made.now)


def choose(made: Scene, exact: ExactPrompt, text: bytes | None = None) -> Decision:
    return made.table.choose(made.request(text, exact=exact), now=made.now, explain=True)


def test_a_burst_of_one_prefix_stays_together_before_any_worker_tells_of_it() -> None:
    """As by text, where the router counts what it sent: to a second worker where the first one's queue costs more."""
    used = []
    for by_text in (False, True):
        made, sent = scene(), []
        for number in range(12):
            text = prompt(1, HEAD * BLOCK * 4) + prompt(100 + number, 512)
            sent.append(made.start(text) if by_text else send(made, asked(chain(number))))
            made.now += 0.001
        computed = sum(reservation.prefill_tokens for reservation in sent)
        assert computed < 5 * HEAD * BLOCK, "not twelve times"
        used.append(len({reservation.decision.worker for reservation in sent}))
    assert used[0] == used[1] == 4


def test_the_choice_says_what_is_on_its_way() -> None:
    made = scene()
    first = send(made, asked(chain(1)))
    told = {int(first.decision.worker.rpartition("w")[2]): ExactMatch(64 * BLOCK)}
    decision = choose(made, asked(chain(2), told))
    assert decision.worker == first.decision.worker
    assert (decision.predicted_hit_tokens, decision.expected_tokens) == (HEAD * BLOCK, (HEAD - 64) * BLOCK)
    assert "holds 8,192 tokens, of which 7,168 are on their way to it" in sentence(decision)


def test_a_worker_that_holds_it_needs_no_expectation() -> None:
    made = scene(workers=1)
    send(made, asked(chain(1)))
    decision = choose(made, asked(chain(2), {0: ExactMatch((HEAD + 4) * BLOCK)}))
    assert (decision.predicted_hit_tokens, decision.expected_tokens) == ((HEAD + 4) * BLOCK, 0)


def test_what_comes_to_the_device_takes_the_place_of_what_is_behind_it_in_other_tiers() -> None:
    match = ExactMatch(160, 320, 480).reaching(640)
    assert (match.device_tokens, match.host_tokens, match.remote_tokens, match.expected_tokens) == (640, 0, 320, 480)
    assert match.told_tokens == 640 - 480 + 320
    near = ExactMatch(160, 320, 480).reaching(320)
    assert (near.device_tokens, near.host_tokens, near.remote_tokens) == (320, 160, 480)


@pytest.mark.parametrize("read", [True, False], ids=["its answer had begun", "before its answer"])
def test_a_prompt_that_fails_is_expected_only_where_it_was_read(read: bool) -> None:
    made = scene()
    first = send(made, asked(chain(1)))
    if read:
        made.table.first_byte(first, now=made.now)
    made.table.release(first, FAILED, now=made.now)
    assert choose(made, asked(chain(2))).expected_tokens == (HEAD * BLOCK if read else 0)
    made.now += CONFIRMED_WITHIN_S
    assert choose(made, asked(chain(2))).expected_tokens == 0


def test_an_answer_without_a_stream_is_expected_until_its_events_must_have_come() -> None:
    made = scene()
    first = send(made, asked(chain(1)))
    made.now += 30
    assert choose(made, asked(chain(2))).expected_tokens == HEAD * BLOCK
    made.table.release(first, Outcome(True, prompt_tokens=8321, cached_tokens=0), now=made.now)
    made.now += CONFIRMED_WITHIN_S
    assert choose(made, asked(chain(2))).expected_tokens == 0


def test_a_prompt_that_is_never_read_is_not_waited_for() -> None:
    made = scene()
    send(made, asked(chain(1)))
    made.now += READ_WITHIN_S
    assert choose(made, asked(chain(2))).expected_tokens == 0


def test_a_worker_that_restarts_or_leaves_is_expected_to_hold_nothing() -> None:
    made = scene(workers=2)
    first = send(made, asked(chain(1)))
    made.table.worker_forgotten(first.decision.worker)
    assert choose(made, asked(chain(2))).expected_tokens == 0
    made.table.release(first, FAILED, now=made.now)
    second = send(made, asked(chain(3)))
    rest = {name: entry for name, entry in made.policy.workers.items() if name != second.decision.worker}
    made.publish(replace_workers(made, rest))
    assert len(made.table._expected) == 0


def replace_workers(made: Scene, workers: dict[WorkerId, object]):
    return msgspec.structs.replace(made.policy, workers=workers)


def test_of_a_worker_that_cannot_tell_nothing_is_expected_and_its_belief_stands() -> None:
    made, text = scene(workers=2), prompt(1, 33_280)
    everybody = (0, 1)
    first = send(made, asked(chain(1), unknown=everybody), text)
    assert first.expectation is None
    decision = choose(made, asked(chain(1), unknown=everybody), text)
    assert decision.worker == first.decision.worker and decision.predicted_hit_tokens > 0
    assert decision.expected_tokens == 0


def test_an_expectation_that_is_not_met_costs_no_credit_and_is_no_violation() -> None:
    """Nor does one that is met make up for what the worker told and did not deliver."""
    made, text = scene(workers=1), prompt(1, 33_280)
    for delivered, credit in ((0, 1.0), (HEAD * BLOCK // 2, 1.0)):
        send(made, asked(chain(1)), text)
        waiting = send(made, asked(chain(2)), text)
        assert waiting.decision.expected_tokens == HEAD * BLOCK
        made.table.first_byte(waiting, now=made.now)
        outcome = Outcome(True, prompt_tokens=8321, completion_tokens=1, cached_tokens=delivered)
        assert made.table.release(waiting, outcome, now=made.now).isolation == "ok"
        assert made.table.state(now=made.now).worker_credit[worker_id(0)] == credit
        made.table.worker_forgotten(worker_id(0))
    told = send(made, asked(chain(3), {0: ExactMatch(HEAD * BLOCK)}), text)
    made.finish(told, cached=0, prompt=8321)
    assert made.table.state(now=made.now).worker_credit[worker_id(0)] < 1.0


def test_only_what_a_worker_told_excuses_more_cached_tokens_than_history_allows() -> None:
    """The text says 10 KB, the tokens 8,192: what is expected must not explain them, what was told does."""
    verdicts = []
    for told in ({}, {0: ExactMatch(HEAD * BLOCK)}):
        made, text = scene(workers=1), prompt(1, 4096)
        made.now += 5
        made.fresh_caches()
        send(made, asked(chain(1)), prompt(2, 4096))
        mine = send(made, asked(chain(2), told), text)
        assert mine.decision.predicted_hit_tokens == HEAD * BLOCK
        made.table.first_byte(mine, now=made.now)
        outcome = Outcome(True, prompt_tokens=8321, completion_tokens=1, cached_tokens=HEAD * BLOCK)
        verdicts.append(made.table.release(mine, outcome, now=made.now).isolation)
    assert verdicts == ["violation", "ok"]


@pytest.mark.parametrize(("told", "expected", "delivered", "promised"), [
    (100, 50, 0, 100), (100, 50, 100, 100), (100, 50, 130, 130), (100, 50, 150, 150), (100, 50, 400, 150),
    (100, 0, 30, 100),
])  # fmt: skip
def test_what_a_worker_answers_for(told: int, expected: int, delivered: int, promised: int) -> None:
    decision = choose(scene(workers=1), asked(chain(1)))
    decision.predicted_hit_tokens, decision.expected_tokens = told + expected, expected
    assert decision.promised_tokens(delivered) == promised


@pytest.mark.interpreted
def test_there_is_a_bound_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_module, "EXPECTED_MAX", 3)
    kept = Expected()
    made = [kept.begin(worker_id(number), chain(number, family=number + 1), now=1.0) for number in range(4)]
    assert [each is not None and each.over for each in made] == [True, False, False, False]
    assert EXPECTED_MAX > 3 and len(kept) == 3


def naive(alive: list[Expectation], hashes: list[int]) -> dict[WorkerId, int]:
    """Leading blocks that each worker's expectations share with a chain, to where anchors can tell."""
    found: dict[WorkerId, int] = {}
    for each in alive:
        common = next(
            (place for place, (one, other) in enumerate(zip(each.hashes, hashes, strict=False)) if one != other),
            min(len(each.hashes), len(hashes)),
        )
        if common >= ANCHORS[0]:
            found[each.worker] = max(found.get(each.worker, 0), common)
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "begin", "read", "drop", "forget", "wait"]),
        st.integers(0, 3),
        st.integers(0, 40),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_in_any_order_of_steps_nothing_stays_behind(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Begun, read, dropped, forgotten and timed out in any order: what is found is what is under way, and no more."""
    kept, now = Expected(), 0.0
    begun: list[tuple[Expectation, float, bool]] = []
    for step, worker, head, own in steps:
        if step == "begin":
            expectation = kept.begin(worker_id(worker), chain(own, head=head, own=own), now=now)
            if expectation is not None:
                begun.append((expectation, now + READ_WITHIN_S, False))
        elif step == "wait":
            now += own / 10.0
        elif step == "forget":
            kept.forget_worker(worker_id(worker))
            begun = [each for each in begun if each[0].worker != worker_id(worker)]
        elif begun:
            place = (head + own) % len(begun)
            expectation, until, was_read = begun[place]
            if step == "drop":
                kept.drop(expectation)
                del begun[place]
            else:
                kept.read(expectation, now=now)
                begun[place] = expectation, until if was_read else now + CONFIRMED_WITHIN_S, True
        begun = [each for each in begun if each[1] > now]
        asked_for = chain(own, head=40, own=own)
        found, wanted = kept.found(asked_for, now=now), naive([each[0] for each in begun], asked_for)
        assert found.keys() == wanted.keys() and len(kept) == len(begun)
        for name, blocks in found.items():
            assert wanted[name] * 2 <= blocks * 3 + 3 and blocks <= wanted[name]
    for expectation, _, _ in begun:
        kept.drop(expectation)
        kept.drop(expectation)
    assert len(kept) == 0 and kept.anchors == 0


RUNS = st.lists(
    st.tuples(st.sampled_from(["send", "byte", "good", "bad", "restart", "wait"]), st.integers(0, 9)), max_size=40
)


def test_a_chain_with_one_hash_twice_is_dropped_like_any_other() -> None:
    kept = Expected()
    expectation = kept.begin(worker_id(0), [7] * 20, now=1.0)
    assert expectation is not None and kept.found([7] * 20, now=1.0) == {worker_id(0): 20}
    kept.drop(expectation)
    assert len(kept) == kept.anchors == 0


@settings(max_examples=60, deadline=None)
@given(RUNS)
def test_every_way_a_request_ends_leaves_nothing_expected(runs: list[tuple[str, int]]) -> None:
    made, under_way = scene(workers=3), []
    for step, number in runs:
        if step == "send":
            under_way.append(send(made, asked(chain(number, head=20 * (number % 3 + 1)))))
        elif step == "restart":
            made.table.worker_forgotten(worker_id(number % 3))
        elif step == "wait":
            made.now += number / 4.0
        elif under_way and step == "byte":
            made.table.first_byte(under_way[number % len(under_way)], now=made.now)
        elif under_way:
            reservation = under_way.pop(number % len(under_way))
            outcome = Outcome(True, prompt_tokens=400, cached_tokens=0) if step == "good" else FAILED
            made.table.release(reservation, outcome, now=made.now)
            made.table.release(reservation, FAILED, now=made.now)
        decision = choose(made, asked(chain(99, head=60)))
        assert 0 <= decision.expected_tokens <= decision.predicted_hit_tokens <= decision.predicted_prompt_tokens
    for reservation in under_way:
        made.table.release(reservation, FAILED, now=made.now)
    made.now += CONFIRMED_WITHIN_S
    choose(made, asked(chain(99, head=60)))
    assert len(made.table._expected) == 0 and made.table._expected.anchors == 0
