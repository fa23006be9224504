"""The engine as conversations with a clock, and as invariants over random ones."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.engine import Engine, EngineLimits, Sequence, TokenOut
from simulator.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from simulator.hashing import BlockDigest, event_hash, extend_chain

SIZE = 4


def engine(blocks: int = 65, **limits: int) -> Engine:
    return Engine(EngineLimits(blocks=blocks, block_size_tokens=SIZE, **limits))


def sequence(tokens: list[int], *, max_tokens: int = 1, salt: str | None = None, at: float = 0.0) -> Sequence:
    return Sequence(
        id="s", tokens=list(tokens), prompt_tokens=len(tokens), max_tokens=max_tokens, salt=salt, arrived_at=at
    )


def run(machine: Engine, *sequences: Sequence, now: float = 0.0) -> tuple[list[KvEvent], float]:
    """Add all and run dry; the events and the time of the end."""
    for one in sequences:
        machine.add(one)
    happened: list[KvEvent] = []
    while (step := machine.begin_step(now)) is not None:
        happened += step.events
        now += step.duration_s
        machine.finish_step(step, now)
    return happened, now


def ask(machine: Engine, tokens: list[int], **fields: object) -> int:
    asked = sequence(tokens, **fields)  # type: ignore[arg-type]
    run(machine, asked)
    assert asked.cached_tokens is not None
    return asked.cached_tokens


def test_it_hits_the_whole_blocks_of_a_repeated_prompt() -> None:
    machine = engine()
    assert ask(machine, list(range(18))) == 0
    assert ask(machine, list(range(18))) == 16


def test_it_never_caches_a_prompt_fully_and_stores_its_last_block_again() -> None:
    machine = engine()
    first, _ = run(machine, sequence(list(range(16))))
    again = sequence(list(range(16)))
    second, _ = run(machine, again)
    assert again.cached_tokens == 12
    assert isinstance(first[0], BlockStored) and isinstance(second[0], BlockStored)
    assert second[0].block_hashes == first[0].block_hashes[-1:]
    assert second[0].parent_block_hash == first[0].block_hashes[-2]


def test_it_counts_a_block_stored_thrice_as_removed_thrice() -> None:
    machine = engine(blocks=17)
    happened: list[KvEvent] = []
    for _ in range(3):
        happened += run(machine, sequence(list(range(8))))[0]
    last = event_hash(_chain(list(range(8)))[-1])
    happened += run(machine, sequence(list(range(100, 163))))[0]
    stored = sum(last in e.block_hashes for e in happened if isinstance(e, BlockStored))
    gone = sum(last in e.block_hashes for e in happened if isinstance(e, BlockRemoved))
    assert (stored, gone) == (3, 3)


def test_it_caches_what_it_generated() -> None:
    machine = engine()
    first = sequence(list(range(10)), max_tokens=10)
    run(machine, first)
    assert len(first.tokens) == 20
    following = [*first.tokens, 1, 2, 3]
    assert ask(machine, following) == 16  # the last generated token was never computed


def test_it_evicts_a_chain_from_its_tail() -> None:
    machine = engine(blocks=9)
    run(machine, sequence(list(range(16))))
    happened, _ = run(machine, sequence(list(range(50, 70))))
    removed = [e.block_hashes[0] for e in happened if isinstance(e, BlockRemoved)]
    chain = [event_hash(digest) for digest in _chain(list(range(16)))]
    assert removed == [chain[3]]
    assert ask(machine, list(range(16))) == 12


def test_it_isolates_salts() -> None:
    machine = engine()
    assert ask(machine, list(range(18)), salt="a") == 0
    assert ask(machine, list(range(18)), salt="b") == 0
    assert ask(machine, list(range(18))) == 0
    assert ask(machine, list(range(18)), salt="a") == 16


def test_it_announces_a_clear_with_the_next_batch() -> None:
    machine = engine()
    run(machine, sequence(list(range(8))))
    assert machine.cache.clear()
    assert machine.begin_step(1.0) is None
    happened, _ = run(machine, sequence(list(range(8))))
    assert isinstance(happened[0], AllBlocksCleared)
    assert isinstance(happened[1], BlockStored)


def test_it_refuses_to_clear_while_a_request_runs() -> None:
    machine = engine()
    machine.add(sequence(list(range(8))))
    machine.begin_step(0.0)
    assert not machine.cache.clear()


def test_it_counts_only_running_requests_in_kv_use() -> None:
    machine = engine(blocks=9)
    machine.add(sequence(list(range(16))))
    step = machine.begin_step(0.0)
    assert step is not None
    assert machine.cache.pinned_share == 0.5
    machine.finish_step(step, 1.0)
    assert machine.cache.pinned_share == 0.0
    assert machine.cache.resident_blocks == 4


def test_it_prefills_in_chunks_of_the_batch() -> None:
    machine = engine(max_num_batched_tokens=10)
    machine.add(sequence(list(range(25))))
    counts = []
    now = 0.0
    while (step := machine.begin_step(now)) is not None:
        counts.append(step.tokens)
        now += step.duration_s
        machine.finish_step(step, now)
    assert counts == [10, 10, 5]


def test_it_queues_above_max_num_seqs_in_order_of_arrival() -> None:
    machine = engine(max_num_seqs=1)
    first, second = sequence([1, 2, 3], max_tokens=3), sequence([4, 5, 6])
    run(machine, first, second)
    assert first.last_token_at is not None and second.scheduled_at is not None
    assert second.scheduled_at >= first.last_token_at


def test_it_preempts_the_last_comer_when_blocks_run_out() -> None:
    machine = engine(blocks=9)
    first, second = sequence(list(range(15)), max_tokens=12), sequence(list(range(50, 65)), max_tokens=12)
    run(machine, first, second)
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert first.output_tokens == second.output_tokens == 12
    assert machine.counts.preemptions == 1


def test_it_answers_the_same_prompt_with_the_same_tokens() -> None:
    one, two = sequence(list(range(9)), max_tokens=6), sequence(list(range(9)), max_tokens=6)
    run(engine(), one)
    run(engine(), two)
    assert one.tokens == two.tokens


def test_it_frees_an_aborted_request_at_the_next_step() -> None:
    machine = engine()
    gone = sequence(list(range(16)), max_tokens=50)
    machine.add(gone)
    step = machine.begin_step(0.0)
    assert step is not None
    machine.abort(gone)
    assert machine.finish_step(step, 1.0) == []
    assert machine.cache.pinned_share == 0.0
    assert machine.begin_step(1.0) is None


def test_it_takes_longer_without_the_cache_and_with_more_context() -> None:
    machine = Engine(EngineLimits(max_num_batched_tokens=4096))
    _, cold_s = run(machine, sequence(list(range(4096))))
    start = cold_s
    _, ended = run(machine, sequence(list(range(4096))), now=start)
    assert 0.35 <= cold_s <= 0.5  # S2.6
    assert ended - start < 0.02
    cost = machine.cost
    assert cost.step_s(prefills=[], decode_contexts=[10_000]) > cost.step_s(prefills=[], decode_contexts=[100])


def _chain(tokens: list[int], salt: str | None = None) -> list[BlockDigest]:
    digests: list[BlockDigest] = []
    extend_chain(digests, tokens, block_size_tokens=SIZE, salt=salt)
    return digests


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
ARRIVALS = st.lists(
    st.tuples(PROMPTS, st.integers(1, 12), st.sampled_from([None, "a", "b"]), st.booleans()), min_size=1, max_size=14
)


class Ledger:
    """Rebuilds the cache from its events alone, as a subscriber does: a count for each hash."""

    def __init__(self) -> None:
        self.copies: dict[int, int] = {}

    def apply(self, happened: list[KvEvent]) -> None:
        for event in happened:
            assert not isinstance(event, AllBlocksCleared)
            change = 1 if isinstance(event, BlockStored) else -1
            for block in event.block_hashes:
                self.copies[block] = self.copies.get(block, 0) + change
                assert self.copies[block] >= 0

    def resident(self) -> set[int]:
        return {block for block, copies in self.copies.items() if copies}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ARRIVALS, st.integers(16, 30), st.integers(3, 50), st.integers(1, 5))
def test_it_keeps_its_invariants_whatever_arrives(
    arrivals: list[tuple[list[int], int, str | None, bool]], blocks: int, batch: int, seqs: int
) -> None:
    machine = engine(blocks=blocks, max_num_batched_tokens=batch, max_num_seqs=seqs)
    ledger = Ledger()
    everyone = [sequence(tokens, max_tokens=count, salt=salt) for tokens, count, salt, _ in arrivals]
    pending = list(zip(everyone, arrivals, strict=True))
    outputs: list[TokenOut] = []
    now = 0.0
    for _ in range(3_000):
        if pending and (pending[0][1][3] or not (machine.running or machine.waiting)):
            machine.add(pending.pop(0)[0])
        elif pending:
            pending[0] = (pending[0][0], (*pending[0][1][:3], True))
        step = machine.begin_step(now)
        if step is None:
            if not pending:
                break
            continue
        _check_admissions(step.admitted, ledger, step.events)
        ledger.apply(step.events)
        _check_blocks(machine, ledger)
        now += step.duration_s
        outputs += machine.finish_step(step, now)
    assert not machine.running and not machine.waiting
    assert all(one.output_tokens == one.max_tokens for one in everyone)
    assert sum(output.finish_reason is not None for output in outputs) == len(everyone)
    assert machine.cache.pinned_share == 0.0


def _check_blocks(machine: Engine, ledger: Ledger) -> None:
    pinned = {block for one in machine.running for block in one.blocks}
    assert len(pinned) + machine.cache.free_blocks == machine.cache.capacity_blocks
    assert not any(machine.cache.is_free(block) for block in pinned)
    assert machine.cache.resident_blocks == len(ledger.resident())
    for one in machine.running:
        stored = [event_hash(digest) for digest in one.digests[: one.stored_blocks]]
        assert set(stored) <= ledger.resident()  # a pinned block is never evicted


def _check_admissions(admitted: list[Sequence], ledger: Ledger, happened: list[KvEvent]) -> None:
    """The first one admitted hits exactly the longest prefix that the events before this step describe,
    unless a request scheduled earlier in the same step stored or evicted blocks of it."""
    if len(admitted) != 1 or sum(isinstance(event, BlockStored) for event in happened) > 1:
        return
    if any(isinstance(event, BlockRemoved) for event in happened):
        return
    one = admitted[0]
    prompt = one.tokens[: one.prompt_tokens]
    hit = 0
    for digest in _chain(prompt, one.salt)[: (len(prompt) - 1) // SIZE]:
        if event_hash(digest) not in ledger.resident():
            break
        hit += SIZE
    if not any(isinstance(event, BlockStored) and event.parent_block_hash is not None for event in happened):
        assert one.cached_tokens == hit
    else:
        assert one.cached_tokens is not None and one.cached_tokens >= hit
