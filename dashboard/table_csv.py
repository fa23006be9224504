"""Every table of every page as CSV: the page's own answer with `csv=<the table's label>`, read back from its HTML.

What a person may see, how it is filtered and in which order are so by construction those of the page; a table that
comes in pages is given whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from html.parser import HTMLParser

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, URLResolver
from django.utils.text import slugify

from dashboard import numbers
from dashboard.tables import Cell, Table, to_csv

CSV = "csv"
"""The query's name of what is asked for: the label of a table's region."""
PAGES_MAX = 100
"""Of a list: 5,000 rows at 50 a page. A longer one is narrowed first, and the file's last row says so."""
_NOT_SAID = frozenset({"svg", "button", "form", "script", "style"})
_VOID = frozenset({"input", "br", "img", "hr", "meta", "link", "wbr", "use"})

View = Callable[..., HttpResponseBase]


def offer_tables(patterns: list[URLPattern | URLResolver]) -> list[URLPattern | URLResolver]:
    """The same addresses, whose pages answer a request for one of their tables too."""
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            pattern.callback = _with_tables(pattern.callback)
    return patterns


def _with_tables(view: View) -> View:
    @wraps(view)
    def answered(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        label = request.GET.get(CSV, "")
        if not label or request.method != "GET":
            return view(request, *args, **kwargs)
        return _table_of(label, request, lambda: view(request, *args, **kwargs))

    return answered


def _table_of(label: str, request: HttpRequest, render: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """The page's answer where it is none (a redirect, a refusal). Raises Http404 for a page without such a table."""
    rows: list[list[Cell]] = []
    for number in range(1, PAGES_MAX + 1):
        _ask_for(request, number)
        answer = render()
        if not isinstance(answer, HttpResponse) or answer.status_code != 200:
            return answer
        headers, found, goes_on = _read(answer, label)
        rows += found
        if not goes_on:
            break
    else:
        rows.append([f"cut after {len(rows)} rows: narrow the list"])
    disposition = f'attachment; filename="tidemark-{slugify(label) or "table"}.csv"'
    content = to_csv(Table(headers=headers, rows=rows))
    return HttpResponse(content, content_type="text/csv; charset=utf-8", headers={"Content-Disposition": disposition})


def _ask_for(request: HttpRequest, number: int) -> None:
    query = request.GET.copy()
    query.pop(CSV, None)
    query["page"] = str(number)
    query._mutable = False
    request.GET = query  # type: ignore[assignment]  # a QueryDict that is mutable no more


def _read(answer: HttpResponse, label: str) -> tuple[list[str], list[list[Cell]], bool]:
    """Headers, rows, and whether the table has another page."""
    reader = _Reader(label)
    reader.feed(answer.content.decode())
    if not reader.rows:
        raise Http404("There is no such table on this page.")
    head, *body = reader.rows
    # Columns of buttons alone say nothing.
    said = [at for at, name in enumerate(head) if name or any(len(row) > at and row[at] for row in body)]
    cut = [[row[at] if at < len(row) else "" for at in said] for row in (head, *body)]
    rows: list[list[Cell]] = [[None if cell == numbers.UNKNOWN else cell for cell in row] for row in cut[1:]]
    return cut[0], rows, reader.goes_on


class _Reader(HTMLParser):
    """Rows of the first table in the region with this label, as the words that stand in its cells."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.goes_on = False
        """A link to the next page stands behind the table, before any other region."""
        self._label = label
        self._in_region = self._in_table = self._done = self._passed = False
        self._silent = 0
        self._cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self._done:
            self._passed = self._passed or given.get("role") == "region"
            self.goes_on = self.goes_on or (given.get("rel") == "next" and not self._passed)
            return
        if self._silent and tag in _VOID:
            return
        if given.get("role") == "region" and given.get("aria-label") == self._label:
            self._in_region = True
        elif tag == "table" and self._in_region:
            self._in_table = True
        elif self._in_table:
            self._begin(tag)

    def _begin(self, tag: str) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._cell = []
        elif self._cell is not None:
            self._cell.append(" ")
            self._silent += tag in _NOT_SAID

    def handle_endtag(self, tag: str) -> None:
        if self._done or not self._in_table:
            return
        if tag == "table":
            self._done = True
        elif tag in ("td", "th") and self._cell is not None and self.rows:
            self.rows[-1].append(" ".join("".join(self._cell).split()))
            self._cell = None
        elif self._cell is not None:
            self._cell.append(" ")
            self._silent -= tag in _NOT_SAID and self._silent > 0

    def handle_data(self, data: str) -> None:
        if self._cell is not None and not self._silent:
            self._cell.append(data)
