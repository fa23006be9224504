"""The stories of `test_call_balance`, in a pool whose workers pull from each other: both ledgers and both connections
of every pull are given back, whatever source, chosen worker and client do, in any order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from router.call import Call
from router.contract.ids import PoolId, WorkerId
from router.contract.snapshot import PoolPolicy
from router.core.exact.chains import ExactPrefix
from router.core.model import ExactMatch, ExactPrompt, Grant
from router.core.table import RoutingTable
from router.http.prompt_fields import PromptFields
from router.http.protocol import Edge
from router.http.pulling import Pull
from router.service import RouterService, ServiceLimits
from tests.router.conftest import FLEET, MODEL, signed, snapshot_for
from tests.router.scripted_worker import completion
from tests.router.test_call_balance import LIMITS, WORKERS, CallBalance

TOKENS = 20_000
PREFIX = ExactPrefix(list(range(1, TOKENS // 16 + 1)), TOKENS, 16)
PARAMS = {
    "do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "e", "remote_request_id": "r",
    "remote_host": "h", "remote_port": 1,
}  # fmt: skip
CROWD = 40

pytestmark = pytest.mark.interpreted


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


SOURCE_SAYS = {
    "offer": _answer(msgspec.json.encode(completion() | {"kv_transfer_params": PARAMS})),
    "nothing": _answer(msgspec.json.encode(completion())),
    "half an offer": _answer(msgspec.json.encode(completion() | {"kv_transfer_params": PARAMS}))[:150],
    "500": b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}",
    "400": b"HTTP/1.1 400 X\r\ncontent-length: 2\r\n\r\n{}",
    "garbage": b"\x00\xff nonsense\r\n\r\n",
}


class HeldByTheFirst:
    """Every prompt is on the first worker."""

    pools: Mapping[PoolId, object] = {PoolId("p"): None}

    def read(self, grant: Grant, fields: PromptFields, *, kind: str) -> ExactPrefix:
        return PREFIX

    def prompt(self, grant: Grant, prefix: ExactPrefix) -> ExactPrompt:
        return ExactPrompt(TOKENS, PREFIX.hashes, {WorkerId("p/w1"): ExactMatch(TOKENS - 16)})

    def answered(self, call: Call) -> None:
        pass


class PullBalance(CallBalance):
    async def _start(self) -> None:
        policy = snapshot_for([f"http://127.0.0.1:{9100 + number}" for number in range(WORKERS)])
        pool = PoolPolicy(
            models=(MODEL,), transfer="nixl", kv_bytes_per_token=1024, transfer_gib_per_s=20.0, transfer_setup_ms=1.0,
            prefill_tokens_per_s=5000.0,
        )  # fmt: skip
        policy = msgspec.structs.replace(policy, pools={"p": pool})
        self.now = 1000.0
        self.table = RoutingTable(fleet_key=FLEET, booted_at=self.now, rng=random.Random(1))
        self.table.apply_snapshot(signed(policy), policy, now=self.now)
        first = self.table._fleet.workers[WorkerId("p/w1")]
        first.foreign_requests = float(CROWD)
        limits = ServiceLimits(
            worker_inflight_max=4, connect_timeout_s=1.0, stream_head_timeout_s=10.0, first_byte_timeout_s=10.0,
            answer_timeout_s=10.0, retry_budget_share=0.2,
        )  # fmt: skip
        self.service = RouterService(
            table=self.table, upstreams=self, recorder=self, limits=limits, worker_api_key="",
            clock=lambda: self.now, rng=random.Random(2), exact=HeldByTheFirst(),
        )  # fmt: skip
        self.edge = Edge(handler=self, limits=LIMITS, rng=random.Random(3))

    def pulls(self) -> list[Pull]:
        return [call.pull for call in self.under_way() if call.pull is not None]

    def asked(self) -> list[Pull]:
        return [pull for pull in self.pulls() if pull._connection is not None]

    # the story goes on

    @precondition(lambda self: self.asked())
    @rule(which=st.integers(0, 20), what=st.sampled_from(sorted(SOURCE_SAYS)))
    def a_source_says(self, which: int, what: str) -> None:
        connection = self._source(which)
        if not connection.transport.closed:
            connection.data_received(SOURCE_SAYS[what])
        self.turn()

    @precondition(lambda self: self.asked())
    @rule(which=st.integers(0, 20))
    def a_source_offers(self, which: int) -> None:
        self.a_source_says(which, "offer")

    @precondition(lambda self: self.asked())
    @rule(which=st.integers(0, 20), how=st.sampled_from(["breaks off", "is silent", "is down"]))
    def a_source_fails(self, which: int, how: str) -> None:
        connection = self._source(which)
        if how == "breaks off":
            connection.transport.close()
        elif how == "is silent":
            connection.expire(float("inf"))
        else:
            for pull in self.asked():
                pull._connection.give_up_waiting()
        self.turn()

    def _source(self, which: int) -> Any:
        asked = self.asked()
        return asked[which % len(asked)]._connection

    # the books

    @invariant()
    def reservations_are_those_of_the_calls_under_way(self) -> None:
        held = [call.reservation for call in self.under_way()]
        assert all(reservation is not None for reservation in held)
        assert len(held) == self.service.inflight
        sources = [pull.reservation for pull in self.pulls()]
        assert not any(reservation.released for reservation in [*held, *sources])
        by_worker = Counter(reservation.decision.worker for reservation in [*held, *sources])
        outstanding = self.table.state(now=self.now).worker_outstanding
        assert {worker: count for worker, count in outstanding.items() if count} == by_worker

    @invariant()
    def a_call_waits_for_one_thing(self) -> None:
        for call in self.under_way():
            waits = [call.connecting, call.connection, call.pull]
            assert sum(each is not None for each in waits) == 1
            if call.pull is not None:
                assert (call.pull._connecting is None) != (call.pull._connection is None)

    @invariant()
    def a_finished_call_holds_nothing_and_was_recorded_once(self) -> None:
        super().a_finished_call_holds_nothing_and_was_recorded_once()
        assert all(call.pull is None for call in self.calls if call.finished)

    @invariant()
    def connections_are_those_of_the_calls_and_the_idle_ones(self) -> None:
        busy = sum(pool.busy for pool in self.pools.values())
        mine = [*self.connected(), *(pull._connection for pull in self.asked())]
        assert busy == len([connection for connection in mine if not connection.lost])

    @invariant()
    def what_was_pulled_was_offered(self) -> None:
        for call in self.calls:
            assert call.pull_result in ("", "ok", "fell_back")
            assert call.pull_result != "ok" or call.offer


PullBalance.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestPullBalance = PullBalance.TestCase


def test_the_stories_have_pulls_in_them() -> None:
    story = PullBalance()
    story.a_request_comes(stream=True, opens=True, text="long " * 200, again=False)
    assert len(story.asked()) == 1
    story.a_source_offers(0)
    assert not story.pulls() and story.opening
    story.a_connection_opens_or_fails(opens=True, which=0)
    story.a_worker_answers_well(0)
    assert [call.pull_result for call in story.calls] == ["ok"] and story.calls[0].finished
    story.reservations_are_those_of_the_calls_under_way()
    story.teardown()
