"""The last head of a connection, remembered: one peer's heads differ in little more than their Content-Length.

A head equal to the remembered one in every byte but the digits of its Content-Length line means the same with another
length, so it is not read again. Only a head that was read and found good is remembered.
"""

from __future__ import annotations

from typing import Final

_LINES: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""The two usual spellings; a head with another one is known again only when all of it is the same."""
_LENGTH_DIGITS_MAX: Final = 15


def around_length(head: bytes) -> tuple[bytes, bytes]:
    """What stands before and behind the digits of a good head's one Content-Length; (b"", b"") when it has none."""
    if head.lower().count(b"content-length") != 1:
        return b"", b""
    for line in _LINES:
        at = head.find(line)
        if at >= 0:
            front = head[: at + len(line)]
            digits, mark, rest = head[len(front) :].partition(b"\r")
            return (front, mark + rest) if digits.isdigit() else (b"", b"")
    return b"", b""


def length_between(head: bytes, front: bytes, back: bytes) -> int | None:
    """The length of a head that is `front`, digits and `back`, else None. An empty `front` fits no head."""
    if not front or not head.startswith(front) or not head.endswith(back):
        return None
    digits = head[len(front) : len(head) - len(back)]
    return int(digits) if digits.isdigit() and len(digits) <= _LENGTH_DIGITS_MAX else None
