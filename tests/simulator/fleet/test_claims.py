"""The articles' claims: figures with intervals, met or not by their own words, and a command that says so."""

from __future__ import annotations

import json

import pytest

from simulator.__main__ import main
from simulator.fleet import claims
from simulator.fleet.claims import Figure, Setup
from simulator.fleet.generated.kinds import KnowledgeBase
from simulator.fleet.hardware import H200_8B


@pytest.mark.parametrize(
    ("article", "low", "high", "met"),
    [
        ((87.2, 87.2), 86.0, 89.0, True),
        ((87.2, 87.2), 70.0, 78.0, False),
        ((87.2, 87.2), 97.0, 99.0, False),
        ((350.0, 500.0), 439.0, 439.0, True),
        ((350.0, 500.0), 300.0, 310.0, False),
        (None, 1.0, 2.0, None),
    ],
)
def test_a_figure_is_met_when_its_interval_comes_near_the_articles(article, low, high, met) -> None:
    assert Figure("x", "%", article, (low + high) / 2, low, high).met is met


def test_an_idle_worker_answers_within_what_is_claimed() -> None:
    cold_ms, hit_ms = claims._alone_ms()
    assert 350 <= cold_ms <= 500
    assert 10.8 <= hit_ms <= 13.2


def test_the_command_prints_every_claim_and_fails_when_one_is_not_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fleets of two workers and a hundred requests are far from the articles' figures."""
    small = Setup(KnowledgeBase(tenants=3, documents=1), H200_8B.name, workers=2, load=0.2, requests=100)
    for name in ("LONG_DOCUMENTS", "MIXED", "MANY_USERS"):
        monkeypatch.setattr(claims, name, Setup(small.kind, small.profile, 2, 0.2, requests=100 + len(name)))
    assert main(["claims", "--json", "--seeds", "2"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [claim["id"] for claim in found["claims"]] == ["S0.8", "S4.7", "S2.6"]
    figures = [figure for claim in found["claims"] for figure in claim["figures"]]
    assert all(figure["low"] <= figure["mean"] <= figure["high"] for figure in figures)
    assert {figure["met"] for figure in figures} == {True, False, None}
