"""The plain chat request, read in one step: text messages only, none but the commonest fields, each once, no spaces.

Its body goes upstream as it came, with the salt put in front. Whatever is not plainly of this kind, or wrong, is left
to the strict reader in `openai`, which gives the same answer more slowly; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from router.http.canonical import CONTENT, ROLE
from router.http.conversation import system_text
from router.http.endpoints import CHAT
from router.http.openai import ApiRequest
from router.http.plain_fields import PlainMessage, decode_plain, decode_raws

PLAIN_BYTES_MAX: Final = 128 * 1024
"""So few bytes cannot hold more messages than the strict reader allows."""


_ROLES: Final = {name: ROLE + name.encode() + CONTENT for name in ("system", "user", "assistant")}


def read_plain(body: bytes) -> ApiRequest | None:
    """The request, or None for the strict reader to judge."""
    if len(body) > PLAIN_BYTES_MAX or not body.isascii():
        return None
    try:
        plain = decode_plain(body)
    except msgspec.DecodeError:
        return None
    if not plain.messages or not _keys_once(body):
        return None
    max_tokens = plain.max_completion_tokens
    if max_tokens is UNSET or max_tokens is None:
        max_tokens = plain.max_tokens
    return ApiRequest(
        CHAT,
        plain.model,
        [],
        {},
        _canonical(plain.messages),
        "chat",
        plain.stream is True,
        False,
        None,
        None,
        None if max_tokens is UNSET else max_tokens,
        body,
    )


def only_message(request: ApiRequest) -> tuple[str, bytes] | None:
    """(role, text) of a plain request that consists of one message, so that nothing else can be in its prompt."""
    text = request.text
    if not request.plain or text is None or text.count(ROLE) != 1:
        return None
    role, _, content = text[len(ROLE) :].partition(CONTENT)
    return role.decode(), content


def _keys_once(body: bytes) -> bool:
    """No key is repeated: two readers of one body could otherwise take different values from it.

    The values' own bytes, the keys and what must stand between them make up the whole body, so nothing else is in it.
    """
    length = 1
    for name, raw in decode_raws(body).items():
        length += len(name) + memoryview(raw).nbytes + 4
    return length == len(body)


def _canonical(messages: list[PlainMessage]) -> bytes:
    """As `conversation` writes it."""
    out: list[bytes] = []
    for message in messages:
        role, text = message.role, message.content.encode()
        out += (
            _ROLES.get(role) or ROLE + role.encode() + CONTENT,
            system_text(text) if role == "system" else text,
        )
    return b"".join(out)
