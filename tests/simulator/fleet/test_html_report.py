"""The page of a sweep: whole in itself, every figure as text, nothing of a trace's name taken for markup."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path

from simulator.fleet.html_report import Verdict, as_html
from simulator.fleet.policies import POLICIES
from simulator.fleet.table import Row
from tests.simulator.fleet.scenes import row

HOSTILE = 'file:</script><script>alert("1")</script><b onload=x>&.jsonl'


class Elements(html.parser.HTMLParser):
    """Start tags with their attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.inside.append((self.tags[-1][0], data))


def page(*rows: Row) -> str:
    verdicts = [Verdict("goodput <mean>", "1.10", "≥ 1", True)]
    return as_html(rows, title="Sweep <1>", about=["one & all"], verdicts=verdicts)


def test_nothing_is_loaded_and_only_its_own_scripts_may_run() -> None:
    text = page(row(trace="weka"))
    elements = Elements(text)
    assert not [tag for tag, attributes in elements.tags if {"src", "href", "style"} & attributes.keys()]
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    data, plotly, draw = (inside for kind, inside in elements.inside if kind == "script")
    assert json.loads(data)[0]["plot"]["data"][0]["type"] == "heatmap"
    for script in (plotly, draw):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy


def test_names_of_traces_stay_text() -> None:
    text = page(row(trace=HOSTILE), row(trace=HOSTILE, policy="oracle"))
    elements = Elements(text)
    assert sum(tag == "script" for tag, _ in elements.tags) == 3
    assert not [tag for tag, attributes in elements.tags if tag == "b" or "onload" in attributes]
    assert "&lt;/script&gt;" in text and "Sweep &lt;1&gt;" in text and "goodput &lt;mean&gt;" in text
    (data,) = (inside for kind, inside in elements.inside if kind == "script" and inside.startswith("["))
    (heat,) = json.loads(data)[0]["plot"]["data"]
    assert "<" not in heat["y"][0], "Plotly reads markup in labels"


def test_every_figure_is_there_as_text_and_what_is_unknown_is_a_dash() -> None:
    known = row(trace="weka", policy="tidemark", hit_token_share=0.945, ttft_p95_s=8.125)
    unknown = row(trace="weka", policy="oracle", hit_token_share=None, goodput_of_oracle=None)
    text = page(known, unknown)
    for shown in ("94.5", "0.50 / 8.1", "weka 4 × 0.6", "✓ met", '<th scope="col">tidemark</th>'):
        assert shown in text
    hits = text[text.index("<caption>Hit tokens, %") :]
    assert re.findall(r"<td>([^<]+)</td>", hits)[:2] == ["94.5", "–"]


def test_without_an_oracle_the_share_of_good_requests_is_drawn() -> None:
    text = page(row(trace="weka", goodput_of_oracle=None, good_share=0.4))
    assert "Share of good requests" in text and "Over all set-ups" not in text


def test_every_policy_has_a_mark_and_a_colour_of_its_own() -> None:
    text = page(*(row(policy=policy) for policy in POLICIES))
    marks = re.findall(r'<li><span class="(p\d+)" aria-hidden="true">(.)</span> (\w+)</li>', text)
    assert {name for *_, name in marks} == set(POLICIES)
    assert len({mark for _, mark, _ in marks}) == len({colour for colour, *_ in marks}) == len(POLICIES)
    assert all(f"--{colour}: #" in text and f".{colour} {{" in text for colour, *_ in marks)


def test_a_policy_has_the_same_mark_in_every_report() -> None:
    def marks(text: str) -> dict[str, str]:
        return dict(re.findall(r'<li><span class="(p\d+)" aria-hidden="true">.</span> (\w+)</li>', text))

    assert marks(page(row(policy="oracle"), row(policy="tidemark"))) == marks(
        page(row(policy="tidemark"), row(policy="oracle"))
    )


def test_the_command_writes_it(tmp_path: Path) -> None:
    from simulator.__main__ import main

    out = tmp_path / "page.html"
    flags = ["--trace", "toolagent", "--workers", "2", "--load", "0.5", "--seeds", "1", "--requests", "40"]
    assert main(["fleet", *flags, "--policies", "round_robin,oracle", "--html", str(out)]) == 0
    assert "2 runs on modelled workers of h200-8b" in out.read_text()
