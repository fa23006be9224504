"""Strict parse of a request body, and the body that goes upstream.

The body is decoded into raw values by key, so that escaped and repeated keys collapse into one; known values are
checked and forwarded byte for byte; exactly one `cache_salt`, ours, is added (S2).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from router.contract.snapshot import UnknownFields
from router.http.depth import check_depth
from router.http.endpoints import CHAT, TEXT, Endpoint, Prompt
from router.http.errors import BadRequest
from router.http.fields import GRAMMAR_BYTES_MAX, NEVER_FORWARDED

COMPILED_DEPTH_MAX: Final = 32
FIELDS_MAX: Final = 256
SESSION_CHARS_MAX: Final = 256
_NESTED: Final = (list, dict)

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


class ApiRequest:
    """One checked request. `fields` keeps the client's own bytes of every value that may go upstream."""

    __slots__ = (
        "endpoint", "fields", "form", "max_tokens", "model", "plain", "stream", "stream_options", "text", "unknown",
        "user", "wants_usage",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        fields: list[tuple[bytes, Raw | bytes]],
        unknown: dict[str, Raw],
        text: bytes | None,
        form: str,
        stream: bool,
        wants_usage: bool,
        stream_options: dict[str, Any] | None,
        user: str | None,
        max_tokens: int | None,
        plain: bytes = b"",
    ) -> None:
        self.endpoint: Final = endpoint
        self.model: Final = model
        self.fields: Final = fields
        self.unknown: Final = unknown
        self.text: Final = text
        """Canonical text for the fingerprint, None when there is none."""
        self.form: Final = form
        """What kind of text it is: one of `conversation.FORMS`."""
        self.stream: Final = stream
        self.wants_usage: Final = wants_usage
        """The client itself asked for the usage chunk of a stream."""
        self.stream_options: Final = stream_options
        self.user = user
        self.max_tokens: Final = max_tokens
        self.plain: Final = plain
        """The whole body, when it goes upstream as it came (`plain_chat`); `fields` is empty then."""


def parse(body: bytes, *, chat: bool) -> ApiRequest:
    """A chat or text completion. Raises BadRequest."""
    return parse_for(CHAT if chat else TEXT, body)


def parse_for(endpoint: Endpoint, body: bytes) -> ApiRequest:
    """Raises BadRequest naming the field; never anything else."""
    raws = _decode_body(body)
    known, main, kept_back = endpoint.fields, endpoint.main, endpoint.kept_back
    if main.isdisjoint(raws):
        name = min(main)
        raise BadRequest(f"{name} is missing.", param=name)
    if "model" not in raws:
        raise BadRequest("model is missing.", param="model")
    fields: list[tuple[bytes, Raw | bytes]] = []
    unknown: dict[str, Raw] = {}
    values: dict[str, Any] = {}
    for name, raw in raws.items():
        field = known.get(name)
        if field is not None:
            if field.compiled:
                _check_compiled(name, raw)
            try:
                values[name] = value = field.check(raw)
            except msgspec.DecodeError as error:
                raise BadRequest(f"{name}: {error}", param=name) from None
            except RecursionError:
                raise BadRequest(f"{name} is nested too deeply.", param=name) from None
            if type(value) in _NESTED:
                check_depth(name, raw)
            if name not in kept_back:
                fields.append((field.intro, raw))
        elif name not in main and name not in NEVER_FORWARDED and name != "system":
            unknown[name] = raw
    forward, text, form = _read(endpoint, raws, values, len(body))
    fields += forward
    return _assemble(endpoint, fields, unknown, values, text, form)


def upstream_body(request: ApiRequest, *, salt: str, unknown_fields: UnknownFields) -> bytes:
    """The body for the worker. Raises BadRequest for unknown fields under the policy `reject`."""
    if request.plain:
        return _plain_body(request, salt)
    parts: list[bytes | Raw] = [b'{"cache_salt":"', salt.encode(), b'"']
    for intro, raw in request.fields:
        parts += (b",", intro, raw)
    if request.stream and request.endpoint.stream_usage:
        parts += (b',"stream_options":', _stream_options(request))
    if request.endpoint.fixed:
        parts += (b",", request.endpoint.fixed)
    if request.unknown and unknown_fields != "drop":
        if unknown_fields == "reject":
            name = next(iter(request.unknown))[:64]
            raise BadRequest(f"Unknown field: {name}", param=name, code="unknown_field")
        for name, raw in request.unknown.items():
            check_depth(name[:64], raw)
            parts += (b",", msgspec.json.encode(name), b":", raw)
    parts.append(b"}")
    # Raw offers the buffer protocol, which join takes as it takes bytes.
    return b"".join(parts)


def _plain_body(request: ApiRequest, salt: str) -> bytes:
    front, inside = b'{"cache_salt":"%b",' % salt.encode(), memoryview(request.plain)
    if not request.stream:
        return b"".join((front, inside[1:]))
    return b"".join((front, inside[1:-1], b',"stream_options":', _stream_options(request), b"}"))


def _stream_options(request: ApiRequest) -> bytes:
    """Usage is always asked for: it is where the delivered cached tokens are. The relay strips what was not wanted."""
    options = dict(request.stream_options or {})
    if not request.wants_usage:
        options.pop("continuous_usage_stats", None)
    options["include_usage"] = True
    return msgspec.json.encode(options)


def _decode_body(body: bytes) -> dict[str, Raw]:
    try:
        if not body.isascii():
            body.decode()
        raws = _decode_object(body)
    except UnicodeDecodeError:
        raise BadRequest("The body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError:
        raise BadRequest("The body must be a JSON object.", code="invalid_json") from None
    except msgspec.DecodeError:
        raise BadRequest("The body is not valid JSON.", code="invalid_json") from None
    if len(raws) > FIELDS_MAX:
        raise BadRequest(f"More than {FIELDS_MAX} fields.", code="invalid_json")
    return raws


def _check_compiled(name: str, raw: Raw) -> None:
    """Bounds for what a worker would compile into an automaton."""
    if memoryview(raw).nbytes > GRAMMAR_BYTES_MAX:
        raise BadRequest(f"{name} is longer than {GRAMMAR_BYTES_MAX} bytes.", param=name)
    check_depth(name, raw, COMPILED_DEPTH_MAX)


def _read(endpoint: Endpoint, raws: dict[str, Raw], values: dict[str, Any], body_bytes: int) -> Prompt:
    try:
        return endpoint.read(raws, values, body_bytes)
    except (msgspec.DecodeError, RecursionError) as error:
        name = min(endpoint.main)
        raise BadRequest(f"{name}: {error}", param=name) from None


def _assemble(
    endpoint: Endpoint,
    fields: list[tuple[bytes, Raw | bytes]],
    unknown: dict[str, Raw],
    values: dict[str, Any],
    text: bytes | None,
    form: str,
) -> ApiRequest:
    get = values.get
    options = get("stream_options")
    return ApiRequest(
        endpoint,
        values["model"],
        fields,
        unknown,
        text,
        form,
        bool(get("stream")),
        bool(options and options.get("include_usage") is True),
        options,
        _user(values),
        _max_tokens(endpoint, values),
    )


def _user(values: dict[str, Any]) -> str | None:
    """Who asks, for session affinity: `user`, or where Anthropic's clients say it."""
    user = values.get("user")
    if not user and values.get("metadata"):
        user = values["metadata"].get("user_id")
    return user[:SESSION_CHARS_MAX] if user and type(user) is str else None


def _max_tokens(endpoint: Endpoint, values: dict[str, Any]) -> int | None:
    for name in endpoint.max_tokens:
        found: int | None = values.get(name)
        if found is not None:
            return found
    return None
