"""Tables that are sorted by a click on a column's head: the state's `sort` names the column, `-` largest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.scope import PageState


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    """Name in the address; "" = the column cannot be sorted by."""
    label: str
    numeric: bool = False
    """Figures stand at the right, and a first click sorts the largest first."""


@dataclass(frozen=True, slots=True)
class Head:
    column: Column
    query: str
    """Sorts by it, or turns the order round where it is sorted by it."""
    direction: str
    """`ascending`, `descending` or "": the value of `aria-sort`."""


def heads(columns: Sequence[Column], state: PageState) -> list[Head]:
    return [Head(column, state.query(sort=_next(column, state.sort), page=""), _direction(column, state.sort))
            for column in columns]  # fmt: skip


def in_order[Row](rows: Iterable[Row], sort: str, values: Mapping[str, Callable[[Row], Any]]) -> list[Row]:
    """Rows by the value of the column that `sort` names, unknown ones last; as they came for an unknown column."""
    value = values.get(sort.removeprefix("-"))
    if value is None:
        return list(rows)
    known = [(found, row) for row in rows if (found := value(row)) is not None]
    unknown = [row for row in rows if value(row) is None]
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in known] + unknown


def _direction(column: Column, sort: str) -> str:
    if not column.key or sort.removeprefix("-") != column.key:
        return ""
    return "descending" if sort.startswith("-") else "ascending"


def _next(column: Column, sort: str) -> str:
    direction = _direction(column, sort)
    largest_first = direction == "ascending" or (not direction and column.numeric)
    return f"-{column.key}" if largest_first else column.key
