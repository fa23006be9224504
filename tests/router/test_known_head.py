"""A remembered head is recognised with another length, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.errors import EdgeError
from router.http.head import parse_head
from router.http.known_head import around_length, length_between

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nAuthorization: Bearer k"


@pytest.mark.parametrize(
    "head", [HEAD, HEAD.replace(b"Content-Length", b"content-length"), HEAD[: HEAD.index(b"\r\nAuth")]]
)
def test_it_reads_another_length(head: bytes) -> None:
    assert length_between(head.replace(b"12", b"4711"), *around_length(head)) == 4711


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"12", b""),
        HEAD.replace(b"12", b"-1"),
        HEAD.replace(b"12", b"1 2"),
        HEAD.replace(b"12", b"1\r\nContent-Length: 2"),
        HEAD.replace(b"12", b"9" * 16),
        HEAD.replace(b"12", "٣".encode()),
        HEAD.replace(b"Bearer k", b"Bearer l"),
        HEAD + b"\r\nx: y",
    ],
)
def test_it_takes_no_other_head_for_it(head: bytes) -> None:
    assert length_between(head, *around_length(HEAD)) is None


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"Authorization: ", b"content-length: "),
        HEAD.replace(b"Content-Length: 12\r\n", b""),
        HEAD.replace(b"Content-Length: 12", b"CONTENT-LENGTH: 12"),
        HEAD.replace(b": 12", b":12"),
    ],
)
def test_it_remembers_no_place_for_an_unusual_length(head: bytes) -> None:
    assert length_between(head, *around_length(head)) is None


@given(st.binary(max_size=12), st.integers(0, 10**9))
def test_a_recognised_head_is_what_the_strict_reader_reads(insert: bytes, length: int) -> None:
    head = HEAD.replace(b"12", b"%d" % length + insert)
    found = length_between(head, *around_length(HEAD))
    try:
        strict = parse_head(head, headers_max=10).content_length
    except EdgeError:
        strict = None
    if found is not None:
        assert found == strict
