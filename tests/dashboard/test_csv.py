"""CSV that a spreadsheet cannot be made to run."""

from __future__ import annotations

import csv
import io

import pytest

from dashboard.tables import Table, to_csv


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "  =cmd|' /C calc'!A0"])
def test_it_disarms_formulas_in_cells_and_headers(text: str) -> None:
    header, row = list(csv.reader(io.StringIO(to_csv(Table(headers=[text], rows=[[text]])), newline="")))
    assert header[0].startswith("'") and row[0].startswith("'")


def test_it_leaves_unknown_empty_and_keeps_negative_numbers() -> None:
    assert to_csv(Table(headers=["a", "b", "c"], rows=[[None, -1.5, "x,y"]])) == 'a,b,c\r\n,-1.5,"x,y"\r\n'
