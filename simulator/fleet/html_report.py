"""A sweep as one HTML file that needs nothing else: no server, no network, and for the figures as text no script.

Plotly, the style and the figures are inside; a content policy lets nothing else run or load. Everything that comes from
a command line or a trace is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.fleet.measure import TTFT_GOOD_S, RunResult
from simulator.fleet.report_figures import Figure, figures, mark_of, place_of, setup_of
from simulator.fleet.sweep import Case
from simulator.fleet.table import MATRICES, Row, overall

HERE = Path(__file__).parent
VENDOR = HERE.parents[1] / "static" / "vendor"
PLOTLY_FOLDER = "plotly.js-cartesian-dist-min-*"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar of a run, as words."""

    name: str
    ours: str
    bar: str
    met: bool | None


def write_html(
    path: Path, rows: Sequence[Row], *, title: str, about: Sequence[str], verdicts: Sequence[Verdict] = ()
) -> None:
    """Raises OSError, also where the vendored Plotly is missing."""
    path.write_text(as_html(rows, title=title, about=about, verdicts=verdicts), encoding="utf-8")


def as_html(rows: Sequence[Row], *, title: str, about: Sequence[str], verdicts: Sequence[Verdict] = ()) -> str:
    """`about`: sentences on how it was measured."""
    drawn = figures(rows)
    style = (HERE / "report_style.css").read_text() + _vendored("plotly-global.css")
    scripts = [_script(_vendored("plotly-cartesian.min.js")), _script((HERE / "report_draw.js").read_text())]
    policy = "; ".join([
        "default-src 'none'", f"script-src {' '.join(map(_hash, scripts))}", f"style-src {_hash(style)}",
        "img-src data: blob:", "base-uri 'none'", "form-action 'none'",
    ])  # fmt: skip
    body = "\n".join([
        f"<h1>{html.escape(title)}</h1>",
        *(f'<p class="about">{html.escape(sentence)}</p>' for sentence in about),
        _verdicts(verdicts), _overall(rows), _charts(drawn, rows), _tables(rows),
    ])  # fmt: skip
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style id="plotly.js-style-global" class="no-inline-styles">{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="figures">{_data(drawn)}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def about_runs(results: Mapping[Case, RunResult]) -> list[str]:
    """How it was measured, in sentences."""
    cases = list(results)
    profiles, parts = (", ".join(dict.fromkeys(values)) for values in (
        (case.profile for case in cases), (case.part for case in cases)
    ))  # fmt: skip
    seeds, sizes = sorted({case.seed for case in cases}), sorted({case.requests for case in cases})
    return [
        f"{len(cases)} runs on modelled workers of {profiles}; figures are means over the seeds "
        f"{', '.join(map(str, seeds))}; {' or '.join(f'{size:,}' for size in sizes)} requests a run; "
        f"{parts} part of the traces.",
        f"A good request has its first token within {TTFT_GOOD_S:g} s. The first quarter of each run is not measured. "
        "The oracle knows every cache and is greedy; above 1 a policy serves more than it.",
    ]


def _vendored(name: str) -> str:
    """Raises FileNotFoundError where this is not the whole project."""
    for file in VENDOR.glob(f"{PLOTLY_FOLDER}/{name}"):
        return file.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name} is not below {VENDOR}: the HTML report needs the project's vendored Plotly")


def _script(text: str) -> str:
    """Inside an element: what would end it or hide it is written so that JavaScript reads the same."""
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(drawn: Sequence[Figure]) -> str:
    told = [{"id": each.id, "height_px": each.height_px, "plot": each.plot} for each in _numbered(drawn)]
    text = json.dumps(told, ensure_ascii=False, allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _numbered(drawn: Sequence[Figure]) -> list[Figure]:
    """With ids that any trace's name may stand behind."""
    return [
        Figure(f"figure-{number}", each.title, each.says, each.height_px, each.plot)
        for number, each in enumerate(drawn, start=1)
    ]


def _charts(drawn: Sequence[Figure], rows: Sequence[Row]) -> str:
    policies = dict.fromkeys(row.policy for row in rows)
    key = "".join(
        f'<li><span class="p{place_of(policy)}" aria-hidden="true">{mark_of(policy)}</span> {html.escape(policy)}</li>'
        for policy in policies
    )
    heat, *others = _numbered(drawn)
    cards = "".join(_card(each) for each in others)
    return f"""<h2>Policies by set-up</h2>
{_card(heat, wide=True)}
<h2>By load, and hits against evictions</h2>
<p class="says">The same figures stand in the tables below.</p>
<ul class="key" aria-label="Marks of the policies">{key}</ul>
<div class="grid">
{cards}</div>"""


def _card(figure: Figure, *, wide: bool = False) -> str:
    """A wide one keeps its width on a narrow page and scrolls by itself."""
    says, title = html.escape(figure.says), html.escape(figure.title)
    plot = f'<div class="plot" id="{figure.id}" role="group" aria-label="Chart: {title}"></div>'
    if wide:
        plot = f'<div class="wide" role="region" tabindex="0" aria-label="{title}, chart">{plot}</div>'
    return f"""<div class="card">
<h3>{title}</h3>
<p class="says">{says}</p>
{plot}
</div>
"""


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    words = {True: '<span class="met">✓ met</span>', False: '<span class="missed">✗ missed</span>', None: "–"}
    lines = [
        [html.escape(each.name), words[each.met], html.escape(each.ours), html.escape(each.bar)] for each in verdicts
    ]
    return "<h2>Bars</h2>\n" + _table("Bars of the default policy", ["bar", "met", "reached", "asked"], lines, "words")


def _overall(rows: Sequence[Row]) -> str:
    ranked = [each for each in overall(rows) if each.setups]
    if not ranked:
        return ""
    lines = [
        [html.escape(each.policy), _figure(each.goodput_of_oracle_mean), _figure(each.goodput_of_oracle_worst),
         str(each.setups)]
        for each in ranked
    ]  # fmt: skip
    return "<h2>Over all set-ups</h2>\n" + _table(
        "Goodput ÷ the greedy oracle's, best mean first", ["policy", "mean", "worst", "set-ups"], lines
    )


def _tables(rows: Sequence[Row]) -> str:
    """Every figure of every run, set-ups by policies."""
    setups = list(dict.fromkeys(setup_of(row) for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    parts = []
    for title, cell in MATRICES.items():
        by_place = {(row.policy, setup_of(row)): html.escape(cell(row)) for row in rows}
        lines = [[html.escape(setup), *(by_place.get((policy, setup), "–") for policy in policies)] for setup in setups]
        parts.append(_table(title, ["trace, workers × load", *map(html.escape, policies)], lines))
    return "<h2>Tables</h2>\n" + "\n".join(parts)


def _table(caption: str, heads: Sequence[str], lines: Sequence[Sequence[str]], kind: str = "") -> str:
    """Cells are HTML. A table wider than the page scrolls by itself, by keyboard too."""
    caption = html.escape(caption)
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in lines
    )
    return f"""<div class="scroll" role="region" tabindex="0" aria-label="{caption}">
<table class="{kind}"><caption>{caption}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table>
</div>"""


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
