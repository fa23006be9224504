"""Pieces tokenise to what the whole text tokenises to, for tokenizers of several kinds; else nothing is cut."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from router.adapters.tokenizer_files import (
    ModelFiles,
    ModelFilesError,
    cut_tokens,
    cuts_agree,
    encode,
    load_model_files,
)
from router.contract.ids import TenantId
from router.core.exact.segments import Cuts, SegmentCache
from tests.exact.conftest import SECRET, metaspace, word_piece

FolderOf = Callable[..., Path]

FRAGMENTS = [
    "hello", " ", "  ", "\n", "\t\n ", "é", "É", "😀", "中", "\u2028", "don't", "12", "<|", "|>", "<|end", "<", ">",
    "<|end|>", "<|user|>", "<|bos|>", "<|system|>", "[CLS]", "[cls]", "[SEP]", "[MASK]", "[M]", "<x>", "<x><y>", "<y>",
    "x>", "<s>", "</s>", "</", "a",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=25).map("".join)


def in_pieces(tokenizer: Tokenizer, cuts: Cuts, text: str) -> list[int]:
    data, ids = text.encode(), []
    for piece in cuts.split(data, 0):
        ids += piece.ids if piece.ids is not None else encode(tokenizer, data[piece.start : piece.end].decode())
    return ids


@given(text=TEXTS)
def test_pieces_of_the_labs_byte_level_bpe_give_the_whole(model_files: ModelFiles, text: str) -> None:
    assert model_files.uncut == ""
    assert (
        in_pieces(model_files.tokenizer, model_files.cuts, text)
        == model_files.tokenizer.encode(text, add_special_tokens=False).ids
    )


STRIPPING = [
    AddedToken("[MASK]", lstrip=True, rstrip=True, special=True, normalized=False),
    AddedToken("[M]", rstrip=True, normalized=True),
    AddedToken("<x>", special=True),
    AddedToken("<x><y>", special=True),
    AddedToken("<y>", single_word=True, special=True),
]
WORD_PIECE = word_piece(STRIPPING[:4])


@given(text=TEXTS)
def test_pieces_of_a_normalising_tokenizer_with_stripping_tokens_give_the_whole(text: str) -> None:
    cuts = Cuts(cut_tokens(WORD_PIECE))
    assert cuts.token_bytes_max == len("<x><y>")
    assert in_pieces(WORD_PIECE, cuts, text) == WORD_PIECE.encode(text, add_special_tokens=False).ids


@given(text=TEXTS)
def test_pieces_of_an_always_prepending_tokenizer_give_the_whole(text: str) -> None:
    cuts = Cuts(cut_tokens(ALWAYS))
    assert in_pieces(ALWAYS, cuts, text) == ALWAYS.encode(text, add_special_tokens=False).ids


ALWAYS = metaspace("always")


def prepending() -> Tokenizer:
    """Llama 2's way: a normaliser puts a mark before each stretch and in place of blanks, bytes are the fall-back."""
    tokenizer = metaspace("never")
    tokenizer.pre_tokenizer = None  # type: ignore[assignment]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def spacing() -> Tokenizer:
    """A byte-level tokenizer that begins each stretch with a blank."""
    tokenizer = metaspace("never")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


@pytest.mark.parametrize("tokenizer", [prepending(), spacing()], ids=["prepending", "spacing"])
@given(text=TEXTS)
def test_pieces_of_tokenizers_that_add_to_each_stretch_give_the_whole(tokenizer: Tokenizer, text: str) -> None:
    cuts = Cuts(cut_tokens(tokenizer))
    assert cuts.token_bytes_max > 0
    assert in_pieces(tokenizer, cuts, text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_tokens_that_strip_are_no_cuts() -> None:
    assert set(cut_tokens(WORD_PIECE)) == {"[UNK]", "[CLS]", "[SEP]", "<x>", "<x><y>"}


def test_a_token_that_overlaps_one_of_another_kind_means_no_cuts() -> None:
    assert cut_tokens(word_piece(STRIPPING)) == {}


def test_a_beginning_that_is_treated_differently_means_no_cuts(folder_of: FolderOf) -> None:
    files = load_model_files(folder_of(metaspace("first")))
    assert "beginning" in files.uncut
    assert [piece.ids for piece in files.cuts.split(b"a</s>b", 0)] == [None]


def test_the_probes_find_cuts_that_change_tokens(folder_of: FolderOf) -> None:
    tokenizer = metaspace("first")
    assert not cuts_agree(tokenizer, Cuts(cut_tokens(tokenizer)))


def test_an_unknown_pre_tokenizer_means_no_cuts(folder_of: FolderOf) -> None:
    tokenizer = metaspace("always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.FixedLength(5)])
    assert "FixedLength" in load_model_files(folder_of(tokenizer)).uncut


def test_special_tokens_around_a_text_are_found(folder_of: FolderOf) -> None:
    files = load_model_files(folder_of(WORD_PIECE, cls_token="[CLS]", sep_token={"content": "[SEP]"}))
    assert (files.before, files.after) == ((1,), (2,))
    assert files.special_tokens == {"cls_token": "[CLS]", "sep_token": "[SEP]"}


def test_tokens_only_the_configuration_names_are_added(folder_of: FolderOf) -> None:
    token = {"content": "<|late|>", "special": True}
    files = load_model_files(folder_of(metaspace("always"), added_tokens_decoder={"400": token}))
    assert len(encode(files.tokenizer, "<|late|>")) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"model": 1}'])
def test_a_broken_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelFilesError):
        load_model_files(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"no tokenizer\.json"):
        load_model_files(tmp_path)


def test_a_tokenizer_with_dropout_is_refused(folder_of: FolderOf) -> None:
    with pytest.raises(ModelFilesError, match="random"):
        load_model_files(folder_of(Tokenizer(models.BPE(dropout=0.1))))


def test_the_version_follows_every_file(model_folder: Path, tmp_path: Path) -> None:
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    for name in names:
        (tmp_path / name).write_bytes((model_folder / name).read_bytes())
    versions = {load_model_files(tmp_path).version}
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    versions.add(load_model_files(tmp_path).version)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))
    versions.add(load_model_files(tmp_path).version)
    assert len(versions) == 3


TOKENS = {"<a>": 1, "<a><b>": 2, "<b>": 3, "b><c": 4, "<c>": 5}


@given(text=st.lists(st.sampled_from([*TOKENS, "x", "<", ">", "b", "<a", "é"]), max_size=15).map("".join))
def test_cuts_are_leftmost_and_of_those_the_longest(text: str) -> None:
    data, cuts = text.encode(), Cuts(TOKENS)
    pieces = list(cuts.split(data, 0))
    assert b"".join(data[piece.start : piece.end] for piece in pieces) == data
    expected, position = [], 0
    while position < len(data):
        found = max((t for t in TOKENS if data.startswith(t.encode(), position)), key=len, default=None)
        if found is not None:
            expected.append((position, position + len(found.encode())))
        position += len(found.encode()) if found else 1
    assert [(piece.start, piece.end) for piece in pieces if piece.is_cut] == expected


def test_known_pieces_of_one_tenant_are_unknown_to_another() -> None:
    cache, text = SegmentCache(secret=SECRET, bytes_max=1_000_000, tenant_share_max=0.5), b"some text"
    cuts = Cuts({})
    [piece] = cache.look_up(TenantId("alice"), text, list(cuts.split(text, 0)))
    piece.ids = array("I", [1, 2, 3])
    cache.learn(TenantId("alice"), piece)
    assert cache.look_up(TenantId("alice"), text, list(cuts.split(text, 0))) == []
    assert len(cache.look_up(TenantId("charlie"), text, list(cuts.split(text, 0)))) == 1
