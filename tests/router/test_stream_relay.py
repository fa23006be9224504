"""The relay of a stream gives the same events however the bytes are cut: property tests of the pure relay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.http.chunked import LAST_CHUNK, ChunkReader, chunk
from router.http.relay import ChunkedRelay, LengthRelay, Relay, StreamRelay
from router.http.usage import read_usage
from tests.router.scripted_worker import DONE, event, usage_event

texts = st.lists(
    st.text(max_size=20) | st.sampled_from(['"choices":[]', "data: [DONE]", "[DONE]", '"usage":{}']), max_size=6
)
cuts = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def _run(relay: Relay, data: bytes, sizes: list[int]) -> bytes:
    out, at, turn = b"", 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        out += relay.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    return out


def _payload(chunked: bytes) -> bytes:
    reader = ChunkReader()
    payload = b"".join(reader.feed(chunked))
    assert reader.done and not reader.rest
    return payload


@given(texts=texts, sizes=cuts, joined=st.booleans(), strip=st.booleans())
def test_it_gives_the_same_events_however_they_are_cut(
    texts: list[str], sizes: list[int], joined: bool, strip: bool
) -> None:
    events = [event(text) for text in texts]
    sent = [*events, usage_event(), DONE]
    framed = (chunk(b"".join(sent)) if joined else b"".join(map(chunk, sent))) + LAST_CHUNK
    relay = StreamRelay(chunked=True, strip_usage=strip)
    out = _payload(_run(relay, framed, sizes))
    assert out == b"".join([*events, *([] if strip else [usage_event()]), DONE])
    assert relay.complete and relay.reusable and not relay.failed and not relay.truncated
    assert relay.usage == (100, 10, 64)


@given(texts=texts, sizes=cuts)
def test_it_notices_a_missing_end_mark(texts: list[str], sizes: list[int]) -> None:
    relay = StreamRelay(chunked=True, strip_usage=True)
    _run(relay, b"".join(chunk(event(text)) for text in texts) + LAST_CHUNK, sizes)
    assert relay.complete and relay.truncated and relay.failed == "upstream_died"


@given(body=st.binary(max_size=300), behind=st.binary(max_size=10), sizes=cuts)
def test_it_counts_a_length_and_drops_what_is_behind(body: bytes, behind: bytes, sizes: list[int]) -> None:
    relay = LengthRelay(len(body))
    out = relay.feed(b"") + _run(relay, body + behind, sizes)
    assert out == body and relay.complete
    assert relay.reusable or behind


@given(body=st.binary(min_size=1, max_size=300), sizes=cuts, pieces=st.integers(1, 50))
def test_it_frames_other_chunked_answers_anew(body: bytes, sizes: list[int], pieces: int) -> None:
    framed = b"".join(chunk(body[i : i + pieces]) for i in range(0, len(body), pieces)) + LAST_CHUNK
    relay = ChunkedRelay(chunked=True)
    assert _payload(_run(relay, framed, sizes)) == body and relay.complete


def test_it_does_not_collect_an_endless_line() -> None:
    relay = StreamRelay(chunked=True, strip_usage=True)
    sent = sum(len(relay.feed(chunk(b"x" * 65_536))) for _ in range(64))
    assert sent > 2 * 1024 * 1024


def test_it_finds_usage_only_where_it_really_is() -> None:
    spoof = (
        rb'{"choices":[{"text":"\"usage\":{\"prompt_tokens\":9}"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}'
    )
    assert read_usage(spoof) == (5, 2, None)
    assert read_usage(rb'{"choices":[{"text":"\"usage\":{\"prompt_tokens\":9}"}]}') == (None, None, None)
