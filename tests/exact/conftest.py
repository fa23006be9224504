"""The lab's model (byte-level BPE trained from the standard library) and tokenizers made to be difficult."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from router.adapters.tokenizer import ExactTokenizer
from router.adapters.tokenizer_files import ModelFiles, load_model_files
from router.core.exact.block_hashes import BlockHasher

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = bytes(range(32))
BLOCK_SIZE = 16


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    runpy.run_path(str(ROOT / "docker" / "lab" / "mk_model.py"))["main"](str(folder))
    return folder


@pytest.fixture(scope="session")
def model_files(model_folder: Path) -> ModelFiles:
    return load_model_files(model_folder)


@pytest.fixture
def exact(model_files: ModelFiles) -> Iterator[ExactTokenizer]:
    tokenizer = ExactTokenizer(
        model_files, hasher=BlockHasher(algorithm="sha256", block_size=BLOCK_SIZE), secret=SECRET
    )
    yield tokenizer
    tokenizer.close()


def word_piece(added: list[AddedToken]) -> Tokenizer:
    """Lower-cases, strips accents, and puts [CLS] before and [SEP] behind a text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.train_from_iterator(
        ["the quick brown fox, jumps over 12 lazy dogs; word Word café x y z a b c"] * 3, trainer
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.add_special_tokens(added)
    return tokenizer


def metaspace(prepend_scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"])
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog a b c x y z 1 2 3"] * 3, trainer)
    return tokenizer


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., Path]:
    def write(tokenizer: Tokenizer, **config: object) -> Path:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write
