"""Tokens of a template's text, as a pool's workers would see them where its tokenizer is at hand, else by estimate.

The tokenizer is read from the folder that the pool names below `TIDEMARK_ROUTER_TOKENIZER_DIR`, the routers' own. A
chat template in front of the text shifts every block by the same tokens: counts here are of the text alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from tokenizers import Tokenizer

from controlplane.fleet.models import WorkerPool, folder_validator

APPROXIMATE_BYTES_A_TOKEN = 4
"""UTF-8 bytes of English text in one token of common vocabularies, rounded up."""
BLOCK_SIZE_DEFAULT = 16
TOKENIZERS_KEPT = 4
_FILES = {"tokenizer": "tokenizer.json", "chat_template": "chat_template.jinja"}


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """`exact`: by the pool's tokenizer; else four bytes make a token, and positions are estimates."""

    block_size: int = BLOCK_SIZE_DEFAULT
    tokenizer: Tokenizer | None = None
    name: str = "approximate"

    @property
    def exact(self) -> bool:
        return self.tokenizer is not None

    def ids(self, text: str) -> list[int]:
        """Without the tokens that a chat template or a beginning-of-text marker would add."""
        if self.tokenizer is not None:
            return list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        data, size = text.encode("utf-8", "surrogatepass"), APPROXIMATE_BYTES_A_TOKEN
        return [int.from_bytes(data[start : start + size]) for start in range(0, len(data), size)]

    def count(self, text: str) -> int:
        return len(self.ids(text))


def common_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def counter_for(pool: WorkerPool | None) -> TokenCounter:
    """Of the pool's tokenizer, or the estimate in the pool's block size."""
    if pool is None:
        return TokenCounter()
    folder = tokenizer_folder(pool)
    path = folder / _FILES["tokenizer"] if folder else None
    if path is None or not path.is_file():
        return TokenCounter(block_size=pool.block_size)
    return TokenCounter(pool.block_size, _tokenizer(path, path.stat().st_mtime_ns), pool.tokenizer)


def tokenizer_folder(pool: WorkerPool) -> Path | None:
    """None where the pool names none, or this machine has no such folder."""
    base: Path | None = settings.CONFIG.router_tokenizer_dir
    if base is None or not pool.tokenizer:
        return None
    folder_validator(pool.tokenizer)
    folder = base / pool.tokenizer
    return folder if folder.is_dir() else None


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that decides how text becomes tokens; "" for one that is not there."""
    return {
        name: hashlib.sha256((folder / file).read_bytes()).hexdigest() if (folder / file).is_file() else ""
        for name, file in _FILES.items()
    }


@lru_cache(maxsize=TOKENIZERS_KEPT)
def _tokenizer(path: Path, changed_ns: int) -> Tokenizer:
    """`changed_ns` makes a replaced file another entry."""
    return Tokenizer.from_file(str(path))
