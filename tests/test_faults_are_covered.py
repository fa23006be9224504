"""Every fault that docs/faults.md lists names tests, and those exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
DOCUMENT = TESTS.parent / "docs" / "faults.md"
PARTS = [f"A{number}" for number in (*range(1, 10), *range(11, 16), 17, 18, 20, 21, 23, 24)]
"""Faults of parts that have a test; of A22, a thousand websockets, there is none."""
ELSEWHERE = [f"C{number}" for number in range(1, 66, 2)]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    """Cells of every table row below a header."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return [row for row in cells if row[0] not in ("id", "input") and not row[0].startswith("---")]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Tests of a file: functions, and classes made by state machines."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in found if name.lower().startswith("test"))


def test_every_fault_has_one_row() -> None:
    ids = [row[0] for row in rows() if re.fullmatch(r"[AC]\d+", row[0])]
    assert ids == PARTS + ELSEWHERE


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_its_tests_exist(row: list[str]) -> None:
    named = NAMED.findall(row[-1])
    assert named, "no test is named"
    assert len(named) == row[-1].count("`") // 2, "every name is `path.py::test`"
    for path, name in named:
        assert (TESTS / path).is_file(), path
        assert name in names_in(TESTS / path), f"{path} has no {name}"
