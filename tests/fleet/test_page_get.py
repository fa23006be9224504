"""The lean GET of a page: framings an HTTP/1.1 worker may use, however the bytes are cut, and what is refused."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.fleet.addresses import Pinned
from controlplane.fleet.http_answer import HEAD_BYTES_MAX, Answer, NotHttp, TooLarge
from controlplane.fleet.http_page import PageRefused
from controlplane.fleet.page_get import get_page

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: Chunked\r\n\r\n"
PAGES = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
    "empty": (OK + b"content-length: 0\r\n\r\n", b""),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", b"hello"),
    "chunk in capitals": (CHUNKED + b"0A\r\n0123456789\r\n0\r\ntrailer: x\r\n\r\n", b"0123456789"),
    "to the end": (b"HTTP/1.0 200 OK\r\nserver: x\r\n\r\nhello", b"hello"),
    "early hint": (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK + b"content-length: 1\r\n\r\nx", b"x"),
    "equal lengths": (OK + b"content-length: 1\r\ncontent-length: 1\r\n\r\nxy", b"x"),
}


def read(data: bytes, cuts: list[int], *, bytes_max: int = 100) -> Answer:
    answer = Answer(bytes_max=bytes_max)
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    start = 0
    for end in ends:
        answer.feed(data[start:end])
        start = end
    answer.end()
    return answer


@pytest.mark.parametrize("name", PAGES)
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_page_is_the_same_however_its_bytes_arrive(name, cuts):
    data, body = PAGES[name]
    answer = read(data, cuts)
    assert (answer.status, bytes(answer.body), answer.complete) == (200, body, True)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"HTTP/1.1 200", b"SSH-2.0-x\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 999 x\r\n\r\n",
        OK + b"no colon\r\n\r\n", OK + b"content-length: 5\r\n\r\nhell", OK + b"content-length: -5\r\n\r\n",
        OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!", OK + b"content-length: 0x5\r\n\r\nhello",
        OK + b"transfer-encoding: gzip, chunked\r\n\r\n", CHUNKED + b"2\r\nhe\r\n", CHUNKED + b"zz\r\nhe\r\n0\r\n\r\n",
        CHUNKED + b"2\r\nhello\r\n0\r\n\r\n", CHUNKED + b"-2\r\nhe\r\n0\r\n\r\n", CHUNKED + b"1" * 2_000,
        OK + b"x: " + b"y" * HEAD_BYTES_MAX, OK + b"x: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(NotHttp):
        read(data, [])


@pytest.mark.parametrize(
    "data", [OK + b"content-length: 101\r\n\r\n", CHUNKED + b"65\r\n", CHUNKED + b"40\r\n" + b"x" * 64 + b"\r\n40\r\n",
             OK + b"\r\n" + b"x" * 101],
)  # fmt: skip
def test_a_page_above_the_bound_is_refused_before_it_is_kept(data):
    answer = Answer(bytes_max=100)
    with pytest.raises(TooLarge):
        answer.feed(data)
    assert len(answer.body) <= 100


def test_of_another_status_the_head_is_all_that_is_read():
    answer = read(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 10000\r\n\r\n", [])
    assert (answer.status, bytes(answer.body)) == (302, b"")


@given(st.binary(max_size=300), st.booleans())
def test_garbage_is_refused_or_read_and_nothing_else_happens(data, after_a_head):
    answer = Answer(bytes_max=100)
    try:
        answer.feed((CHUNKED if after_a_head else b"") + data)
        answer.end()
    except (NotHttp, TooLarge):
        pass
    assert len(answer.body) <= 100


async def test_a_page_that_a_reset_cuts_is_not_taken_for_a_whole_one():
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PAGES["to the end"][0])
        await writer.drain()
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0.05)
        writer.transport.abort()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        pinned = Pinned(url=f"http://127.0.0.1:{port}", host_header="w", server_name="w")
        with pytest.raises(PageRefused) as refused:
            await get_page(pinned, "/metrics", bytes_max=100)
    assert refused.value.kind == "unreachable"


async def test_it_names_the_host_and_asks_the_pinned_address():
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(PAGES["length"][0])
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        pinned = Pinned(
            url=f"http://127.0.0.1:{port}", host_header=f"worker.example:{port}", server_name="worker.example"
        )
        page = await get_page(pinned, "/metrics", bytes_max=100, headers={"x-proof": "p"})
        with pytest.raises(PageRefused):
            await get_page(pinned, "/metrics", bytes_max=100, headers={"x-proof": "p\r\nx: y"})
    assert (page.status, page.body) == (200, b"hello")
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "GET /metrics HTTP/1.1"
    assert {f"host: worker.example:{port}", "accept-encoding: identity", "connection: close", "x-proof: p"} <= set(
        lines
    )
    assert len(heads) == 1
