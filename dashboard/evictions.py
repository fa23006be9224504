"""Rows of the evictions page: who evicted whom as a small table, and names in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from router.contract.telemetry import OTHER_OWNER, UNKNOWN_OWNER

NAMES_SHOWN = 8
LEVELS = 4
"""Shades of a cell, in proportion to the largest."""


@dataclass(frozen=True, slots=True)
class MatrixCell:
    blocks: int
    level: int
    """0 (none) … LEVELS."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    evictor: str
    cells: list[MatrixCell]
    total: int


@dataclass(frozen=True, slots=True)
class Matrix:
    victims: list[str]
    rows: list[MatrixRow]
    unknown_share: float | None
    """Of the evicted blocks, those whose evictor or owner is not known."""
    own_share: float | None
    """Of those with both known, evicted for the namespace that had them."""


def owner_words(name: str) -> str:
    return {UNKNOWN_OWNER: "not known", OTHER_OWNER: "other namespaces"}.get(name, name)


def matrix_of(evicted: Mapping[tuple[str, str], int]) -> Matrix:
    """The namespaces that take part most; the others are one row and column."""
    kept = _kept(evicted)
    folded: Counter[tuple[str, str]] = Counter()
    for (evictor, victim), blocks in evicted.items():
        folded[_fold(evictor, kept), _fold(victim, kept)] += blocks
    evictors = _ordered({evictor for evictor, _ in folded})
    victims = _ordered({victim for _, victim in folded})
    most = max(folded.values(), default=0)
    rows = [
        MatrixRow(
            owner_words(evictor),
            [_cell(folded[evictor, victim], most) for victim in victims],
            sum(folded[evictor, victim] for victim in victims),
        )
        for evictor in evictors
    ]
    return Matrix([owner_words(victim) for victim in victims], rows, *_shares(evicted))


def _kept(evicted: Mapping[tuple[str, str], int]) -> set[str]:
    part: Counter[str] = Counter()
    for (evictor, victim), blocks in evicted.items():
        part[evictor] += blocks
        part[victim] += blocks
    named = Counter({name: blocks for name, blocks in part.items() if name not in (UNKNOWN_OWNER, OTHER_OWNER)})
    return {name for name, _ in named.most_common(NAMES_SHOWN)} | {UNKNOWN_OWNER}


def _fold(name: str, kept: set[str]) -> str:
    return name if name in kept else OTHER_OWNER


def _ordered(names: set[str]) -> list[str]:
    """Namespaces by name, then the others, then what is not known."""
    return sorted(names, key=lambda name: (name == UNKNOWN_OWNER, name == OTHER_OWNER, name))


def _cell(blocks: int, most: int) -> MatrixCell:
    return MatrixCell(blocks, -(-blocks * LEVELS // most) if most else 0)


def _shares(evicted: Mapping[tuple[str, str], int]) -> tuple[float | None, float | None]:
    total = sum(evicted.values())
    known = {pair: blocks for pair, blocks in evicted.items() if UNKNOWN_OWNER not in pair}
    named = sum(known.values())
    own = sum(blocks for (evictor, victim), blocks in known.items() if evictor == victim)
    return (1 - named / total if total else None), (own / named if named else None)
