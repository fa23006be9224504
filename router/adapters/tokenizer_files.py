"""A model's tokenizer and chat template from its local folder, and where that tokenizer's texts may be cut.

Read are `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; nothing is downloaded, no code of the
model runs. Whether the result tokenises as the worker does is for `parity` to show.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from router.core.exact.segments import Cuts

TOKENIZER_BYTES_MAX = 256 * 1024 * 1024
CONFIG_BYTES_MAX = 8 * 1024 * 1024
CUT_PROBES = 64
"""Random texts on which cutting is checked against the whole when a tokenizer is loaded; about 10 ms."""

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PIECEWISE = frozenset((
    "ByteLevel", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "Split", "BertPreTokenizer",
    "CharDelimiterSplit", "UnicodeScripts", "Sequence", "Metaspace",
))  # fmt: skip
"""Pre-tokenizers that treat each stretch between added tokens by itself (`Metaspace` unless it prepends `first`)."""
_PROBE_WORDS = ("word", " word", "  ", "\n", "\n\n ", "\t", "É", "😀", "中文", "don't", "123 456", "a_b", "A", " ")

_Json = dict[str, Any]  # Any: a decoded configuration file


class ModelFilesError(ValueError):
    """The folder does not hold a tokenizer that can be used here."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    tokenizer: Tokenizer
    special_tokens: dict[str, str]
    """`bos_token` … → text, as the chat template sees them."""
    templates: dict[str, str]
    """Chat templates by name; empty when the model has none."""
    cuts: Cuts
    uncut: str
    """Why texts are tokenised whole, or "" when they are cut."""
    before: tuple[int, ...]
    """Ids put in front of a text where special tokens are asked for."""
    after: tuple[int, ...]
    version: str
    """16 hexadecimal digits over the files' contents."""


def load_model_files(folder: Path) -> ModelFiles:
    """Raises ModelFilesError."""
    # Encoding runs in threads of our own choice; the library's pool would take every core.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raw = _read(folder / "tokenizer.json", TOKENIZER_BYTES_MAX)
    if raw is None:
        raise ModelFilesError("the model folder has no tokenizer.json")
    config_raw = _read(folder / "tokenizer_config.json", CONFIG_BYTES_MAX) or b"{}"
    template_raw = _read(folder / "chat_template.jinja", CONFIG_BYTES_MAX)
    try:
        tokenizer = Tokenizer.from_buffer(raw)
        model, config = json.loads(raw), json.loads(config_raw)
    except Exception as error:  # the library raises bare Exception
        raise ModelFilesError(f"the tokenizer's files cannot be read: {type(error).__name__}") from None
    if not isinstance(config, dict):
        raise ModelFilesError("tokenizer_config.json is not an object")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_configured_tokens(tokenizer, config)
    uncut = _why_uncut(model)
    cuts = Cuts({} if uncut else cut_tokens(tokenizer))
    if not uncut and not cuts_agree(tokenizer, cuts):
        uncut, cuts = "cutting changes how probes tokenise", Cuts({})
    before, after = _around(tokenizer)
    version = hashlib.sha256(b"\0".join((raw, config_raw, template_raw or b""))).hexdigest()[:16]
    return ModelFiles(
        tokenizer, _special_tokens(config), _templates(config, template_raw), cuts, uncut, before, after, version
    )


def cut_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Added tokens at which a text may be cut: matched in the raw text, taking neither neighbours nor sides.

    The others stay inside pieces, where the tokenizer finds them itself; that is right as long as no other token can
    overlap a cut or look across it, else nothing is cut.
    """
    added = [(number, token) for number, token in tokenizer.get_added_tokens_decoder().items() if not token.normalized]
    cuts = {
        token.content: number
        for number, token in added
        if token.content and not (token.lstrip or token.rstrip or token.single_word)
    }
    others = [token for _, token in added if token.content not in cuts]
    spaced = any(token != token.strip() for token in cuts)
    worded = any(re.match(r"\w|.*\w\Z", token, re.DOTALL) for token in cuts)
    if spaced and any(other.lstrip or other.rstrip for other in others):
        return {}
    if worded and any(other.single_word for other in others):
        return {}
    if any(_overlap(other.content, token) for other in others for token in cuts):
        return {}
    return cuts


def cuts_agree(tokenizer: Tokenizer, cuts: Cuts) -> bool:
    """Whether random texts full of added tokens tokenise alike whole and in pieces."""
    tokens = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    words = (*_PROBE_WORDS, *tokens[:64])
    rng = random.Random(0)  # noqa: S311 - probes, the same at every start
    for _ in range(CUT_PROBES):
        text = "".join(rng.choice(words) for _ in range(12))
        if list(_ids_in_pieces(tokenizer, cuts, text.encode())) != encode(tokenizer, text):
            return False
    return True


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` without special tokens.

    A batch of one, because that releases the interpreter lock while it works and `Tokenizer.encode` does not.
    """
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _ids_in_pieces(tokenizer: Tokenizer, cuts: Cuts, text: bytes) -> Iterator[int]:
    for piece in cuts.split(text, 0):
        yield from piece.ids if piece.ids is not None else encode(tokenizer, text[piece.start : piece.end].decode())


def _overlap(left: str, right: str) -> bool:
    """Whether two tokens can claim the same character of some text."""
    if left in right or right in left:
        return True
    return any(
        left[-size:] == right[:size] or right[-size:] == left[:size] for size in range(1, min(len(left), len(right)))
    )


def _why_uncut(model: _Json) -> str:
    if (model.get("model") or {}).get("dropout"):
        raise ModelFilesError("the tokenizer drops merges at random")
    for part in _flattened(model.get("pre_tokenizer")):
        if part["type"] not in _PIECEWISE:
            return f"pre-tokenizer {part['type']} is not known to work piece by piece"
        if part["type"] == "Metaspace" and part.get("prepend_scheme") == "first":
            return "the pre-tokenizer treats the text's beginning differently"
    return ""


def _flattened(part: _Json | None) -> Iterator[_Json]:
    if part is not None:
        yield part
        for inner in part.get("pretokenizers", ()):
            yield from _flattened(inner)


def _add_configured_tokens(tokenizer: Tokenizer, config: _Json) -> None:
    """Added tokens that only tokenizer_config.json names, as transformers adds them."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    configured = config.get("added_tokens_decoder")
    for _, token in sorted((configured or {}).items(), key=lambda item: int(item[0])):
        content = token.get("content")
        if content and content not in known:
            flags = {name: bool(token.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
            special = bool(token.get("special"))
            added = AddedToken(content, special=special, **flags)
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])


def _around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after a text with special tokens. Raises ModelFilesError when they depend on the text."""
    found = set()
    for probe in ("a", "two words\n"):
        body = encode(tokenizer, probe)
        whole: list[int] = tokenizer.encode(probe).ids
        start = next((n for n in range(len(whole)) if whole[n : n + len(body)] == body), None)
        if start is None:
            raise ModelFilesError("special tokens change how a text tokenises")
        found.add((tuple(whole[:start]), tuple(whole[start + len(body) :])))
    if len(found) != 1:
        raise ModelFilesError("special tokens depend on the text")
    return found.pop()


def _special_tokens(config: _Json) -> dict[str, str]:
    tokens = {}
    extra = config.get("extra_special_tokens")
    named = {name: config.get(name) for name in _SPECIAL_NAMES} | (extra if isinstance(extra, dict) else {})
    for name, value in named.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _templates(config: _Json, file: bytes | None) -> dict[str, str]:
    """The file wins over the configuration, where a template is a text or a list of named ones."""
    configured: Any = config.get("chat_template")  # Any: decoded JSON
    named: Mapping[str, str] = {}
    if isinstance(configured, str):
        named = {"default": configured}
    elif isinstance(configured, list):
        named = {entry["name"]: entry["template"] for entry in configured}
    return {"default": file.decode()} if file is not None else dict(named)


def _read(path: Path, bytes_max: int) -> bytes | None:
    try:
        if path.stat().st_size > bytes_max:
            raise ModelFilesError(f"{path.name} is larger than {bytes_max} bytes")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFilesError(f"{path.name} cannot be read: {error.strerror}") from None
