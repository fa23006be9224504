"""The last head of a connection, remembered: one peer's heads differ in little more than their Content-Length.

A head equal to the remembered one in every byte but the digits of its Content-Length line means the same with another
length, so it is not read again. Only a head that was read and found good is remembered.
"""

from __future__ import annotations

_LINES = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""The two usual spellings; a head with another one is simply read each time."""
_LINE_BYTES = 18
_LENGTH_DIGITS_MAX = 15


def split_length(head: bytes) -> tuple[bytes, int | None]:
    """(the head without the digits of its length, the length); (the head, None) when it has no plain one."""
    at = head.find(_LINES[0])
    if at < 0:
        at = head.find(_LINES[1])
        if at < 0:
            return head, None
    at += _LINE_BYTES
    end = head.find(b"\r", at)
    digits = head[at:] if end < 0 else head[at:end]
    if len(digits) > _LENGTH_DIGITS_MAX or not digits.isdigit():
        return head, None
    return (head[:at] if end < 0 else head[:at] + head[end:]), int(digits)


def names_length_once(head: bytes) -> bool:
    """Whether cutting out one length leaves no other behind: the condition for remembering a head."""
    return head.lower().count(b"content-length") <= 1
