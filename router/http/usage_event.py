"""Which event of a stream is the usage event. Its Struct is made by msgspec's metaclass and stays interpreted."""

from __future__ import annotations

import msgspec


class _UsageEvent(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: msgspec.Raw


_decode_usage_event = msgspec.json.Decoder(_UsageEvent).decode


def is_usage_event(data: bytes) -> bool:
    """Exactly the chunk that `include_usage` adds: no choices, and a usage object."""
    try:
        event = _decode_usage_event(data)
    except msgspec.DecodeError:
        return False
    return not event.choices and bytes(event.usage).startswith(b"{")
