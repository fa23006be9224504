"""The fields of a request as its worker gets them, for whoever renders the prompt as the worker does."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from router.contract.snapshot import UnknownFields
from router.http.endpoints import EMBEDDINGS
from router.http.openai import ApiRequest

PromptFields = Mapping[str, Raw | bytes | memoryview | list[dict[str, str]]]
"""Name → JSON of a field, or the messages themselves."""
_MESSAGES = b'"messages":['
_ABSENT = (b"null", b"false", None)
_PAST_THE_CACHE = ("prompt_logprobs", "use_beam_search")
"""With log-probabilities of the prompt a worker computes all of it anew; a beam is many requests."""


class _Plain(msgspec.Struct, gc=False):
    messages: list[dict[str, str]]


_decode_plain = msgspec.json.Decoder(_Plain).decode


def prompt_fields(api: ApiRequest, *, unknown_fields: UnknownFields) -> PromptFields | None:
    """The request's fields; None where no worker's cached tokens can be predicted: embeddings, and requests that pass
    the cache by."""
    if api.endpoint is EMBEDDINGS:
        return None
    if api.plain:
        # Its other fields are few and decide nothing here.
        return {"messages": _plain_messages(api.plain)}
    # An intro is `"name":`.
    fields: dict[str, Raw | bytes] = {intro[1:-2].decode(): raw for intro, raw in api.fields}
    if any(_json(fields, name) not in _ABSENT for name in _PAST_THE_CACHE):
        return None
    if _json(fields, "echo") not in _ABSENT and _json(fields, "logprobs") not in _ABSENT:
        return None
    return {**fields, **api.unknown} if unknown_fields == "pass" else fields


def _plain_messages(body: bytes) -> memoryview | list[dict[str, str]]:
    """Their JSON, without a look at it, where the order of the keys tells where it is: behind the model's name no text
    but theirs follows, and a text cannot hold a quote that begins or ends a key."""
    begin = body.find(_MESSAGES) + len(_MESSAGES) - 1
    if body.find(b'"model":', 0, begin) < 0:
        return _decode_plain(body).messages
    return memoryview(body)[begin : body.rfind(b"]") + 1]


def _json(fields: Mapping[str, Raw | bytes], name: str) -> bytes | None:
    raw = fields.get(name)
    return None if raw is None else bytes(raw)
