"""Streams of messages and responses: passed on byte for byte however they are cut, ended only by their end mark."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.chunked import LAST_CHUNK, ChunkError, ChunkReader
from router.http.named_events import ANTHROPIC, RESPONSES, NamedEventRelay, Speech
from router.http.usage import UNKNOWN, Usage, read_usage
from tests.surface.conftest import (
    COMPLETED,
    CREATED,
    IN_PROGRESS,
    MESSAGE_END,
    MESSAGE_START,
    MESSAGE_STOP,
    MESSAGE_TEXT,
    STREAMS,
    TEXT_DELTA,
    chunk,
    named,
)

SPEECHES = {"/v1/messages": ANTHROPIC, "/v1/responses": RESPONSES}
USAGE = Usage(100, 3, 64)


def relayed(relay: NamedEventRelay, pieces: list[bytes]) -> bytes:
    """What a client reads of it, without the framing."""
    out = b"".join(relay.feed(piece) for piece in pieces)
    return b"".join(ChunkReader().feed(out))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if end > start]


@pytest.mark.parametrize("path", STREAMS)
@given(places=st.lists(st.integers(0, 5000), max_size=12), together=st.booleans())
def test_it_passes_on_whatever_the_cuts(path: str, places: list[int], together: bool) -> None:
    events = STREAMS[path]
    framed = chunk(b"".join(events)) if together else b"".join(chunk(event) for event in events)
    relay = NamedEventRelay(SPEECHES[path], chunked=True)
    assert relayed(relay, cut(framed + LAST_CHUNK, places)) == b"".join(events)
    assert relay.complete and relay.reusable and not relay.failed and relay.usage == USAGE
    assert relay.events == len(events)


@pytest.mark.parametrize("path", STREAMS)
def test_it_takes_a_close_for_an_end_only_behind_the_end_mark(path: str) -> None:
    relay = NamedEventRelay(SPEECHES[path], chunked=False)
    for event in STREAMS[path]:
        assert relay.end() == b"" and not relay.complete
        relay.feed(event)
    assert relay.end() == LAST_CHUNK and relay.complete and not relay.failed


@pytest.mark.parametrize(
    ("speech", "events"), [(ANTHROPIC, STREAMS["/v1/messages"]), (RESPONSES, STREAMS["/v1/responses"])]
)
def test_it_says_that_a_stream_without_its_end_mark_was_cut_off(speech: Speech, events: tuple[bytes, ...]) -> None:
    relay = NamedEventRelay(speech, chunked=True)
    out = relay.feed(b"".join(chunk(event) for event in events[:-1]) + LAST_CHUNK)
    assert relay.truncated and relay.failed == "upstream_died" and not out.endswith(LAST_CHUNK)


@pytest.mark.parametrize("speech", [ANTHROPIC, RESPONSES])
def test_it_takes_the_workers_error_event_for_the_end(speech: Speech) -> None:
    relay = NamedEventRelay(speech, chunked=True)
    relay.feed(chunk(named("error", error={"type": "api_error", "message": "x"})) + LAST_CHUNK)
    assert relay.complete and relay.failed == "upstream_died" and not relay.truncated


def test_it_is_not_fooled_by_a_model_that_talks_about_events() -> None:
    words = named(
        "content_block_delta", delta={"text": "event: message_stop\n\nevent: error\n", "usage": {"input_tokens": 1}}
    )
    relay = NamedEventRelay(ANTHROPIC, chunked=True)
    relay.feed(chunk(MESSAGE_START) + chunk(words))
    assert not relay.ended and not relay.failed and relay.events == 2
    relay.feed(chunk(MESSAGE_END) + chunk(MESSAGE_STOP) + LAST_CHUNK)
    assert relay.complete and relay.usage == USAGE


def test_it_tells_once_when_the_answer_begins() -> None:
    told: list[int] = []
    relay = NamedEventRelay(RESPONSES, chunked=True, on_output=lambda: told.append(relay.events))
    for event, times in ((CREATED, 0), (IN_PROGRESS, 0), (TEXT_DELTA, 1), (TEXT_DELTA, 1), (COMPLETED, 1)):
        relay.feed(chunk(event))
        assert len(told) == times


def test_it_passes_on_a_giant_event_and_still_sees_its_name() -> None:
    giant = named("response.completed", response={"output": "x" * 2_500_000, "usage": {"input_tokens": 9}})
    relay = NamedEventRelay(RESPONSES, chunked=True)
    assert relayed(relay, cut(chunk(giant) + LAST_CHUNK, list(range(0, 2_500_000, 65_536)))) == giant
    assert relay.complete and not relay.failed


def test_it_refuses_broken_framing() -> None:
    with pytest.raises(ChunkError):
        NamedEventRelay(ANTHROPIC, chunked=True).feed(b"zz\r\n")


ANTHROPIC_USAGE = '{"input_tokens":16,"output_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":192}'
DETAILS = '"input_tokens_details":{"cached_tokens":192,"cached_tokens_per_turn":[]}'


@pytest.mark.parametrize(
    ("block", "usage"),
    [
        (ANTHROPIC_USAGE, Usage(208, 4, 192)),
        ('{"input_tokens":9,"output_tokens":0}', Usage(9, 0, None)),
        ('{"input_tokens":9,"output_tokens":1,"cache_read_input_tokens":null}', Usage(9, 1, None)),
        (f'{{"input_tokens":203,{DETAILS},"output_tokens":4}}', Usage(203, 4, 192)),
        (f'{{"input_tokens":10,{DETAILS},"output_tokens":4}}', Usage(10, 4, 10)),
        ('{"prompt_tokens":301,"completion_tokens":0,"prompt_tokens_details":null}', Usage(301, 0, None)),
        ('{"input_tokens":999999999999,"output_tokens":4}', Usage(None, 4, None)),
        ('{"input_tokens":-1,"output_tokens":4}', Usage()),
    ],
)
def test_it_reads_usage_in_every_spelling(block: str, usage: Usage) -> None:
    assert read_usage(f'{{"data":[],"usage":{block},"user":null}}'.encode()) == usage


def test_it_knows_no_usage_where_there_is_none() -> None:
    assert read_usage(MESSAGE_TEXT) == UNKNOWN
