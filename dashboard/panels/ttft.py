"""Panels of the TTFT page: what changed the time to first token, and by how much."""

from __future__ import annotations

from controlplane.telemetry.cohorts import (
    OF_THE_FLEET,
    Deltas,
    LengthBand,
    caching,
    deltas,
    hit_against_miss,
    names_with_traffic,
)
from controlplane.telemetry.shift import SAMPLES_MIN, Shift
from dashboard import freshness
from dashboard.changes import recent_changes, recent_rollouts
from dashboard.charts import ttft as charts
from dashboard.cohort_words import (
    KIND_WORDS,
    LOADS,
    ROLLOUT,
    asked_comparison,
    cohort_words,
    difference,
    interval,
    length_words,
    sides,
    tell_models_apart,
    verdict,
)
from dashboard.data import PageData
from dashboard.panels.base import Context, Panel, chart_context
from dashboard.tables import Cell, Table

COHORTS_SHOWN = 50
_NO_NAMES = ("cache", "change", ROLLOUT)


def _deltas(data: PageData) -> Deltas:
    comparison = data.ask(asked_comparison, state=data.state)
    found: Deltas = data.ask(deltas, comparison=comparison) if comparison.kind != "cache" else data.ask(caching)[0]
    return found


def _verdict(data: PageData) -> Context:
    level, title, sentence = verdict(_deltas(data))
    return {"level": level, "title": title, "sentence": sentence}


def _choice(data: PageData) -> Context:
    kind = data.state.only if data.state.only in KIND_WORDS else "cache"
    narrow = bool(data.state.tenant or data.state.ns)
    kinds = [each for each in KIND_WORDS if not (narrow and (each in OF_THE_FLEET or each == ROLLOUT))]
    return {
        "kind": kind,
        "kinds": [(each, KIND_WORDS[each], data.state.query(only=each, at="", a="", b="")) for each in kinds],
        "changes": data.ask(recent_changes) if kind == "change" else (),
        "rollouts": data.ask(recent_rollouts) if kind == ROLLOUT else (),
        "names": () if kind in _NO_NAMES else data.ask(names_with_traffic, kind=kind),
        "named": kind not in _NO_NAMES,
        "several": kind in OF_THE_FLEET,
    }


def _cohorts(data: PageData) -> Context:
    found = _deltas(data)
    before, after = sides(found) if not found.refused else ("", "")
    told = [cohort.shift.ms for cohort in found.cohorts if cohort.shift is not None]
    apart = tell_models_apart(found.cohorts)
    return chart_context(
        charts.shifts_figure(found.cohorts, found.overall),
        [list(told)],
        verdict(found)[1],
        verdict(found)[2],
        from_first=False,
    ) | {
        "before": before,
        "after": after,
        "rows": [
            {
                "words": cohort_words(each, with_model=apart),
                "cohort": each,
                "told": _told(each.shift),
            }
            for each in found.cohorts[:COHORTS_SHOWN]
        ],
        "left_out": max(0, len(found.cohorts) - COHORTS_SHOWN),
        "deltas": found,
        "samples_min": SAMPLES_MIN,
    }


def _told(shift: Shift | None) -> dict[str, str]:
    return {} if shift is None else {"difference": difference(shift), "interval": interval(shift)}


def _cohorts_table(data: PageData) -> Table:
    found = _deltas(data)
    before, after = sides(found) if not found.refused else ("a", "b")
    rows: list[list[Cell]] = []
    for each in found.cohorts:
        shift = each.shift
        told: list[Cell] = ["too few samples", None, None, None, None, None]
        if shift is not None:
            told = [shift.told, shift.before_ms, shift.after_ms, shift.ms, shift.low_ms, shift.high_ms]
        names = [each.model, length_words(each.length), LOADS[each.load]]
        rows.append([*names, each.before_count, each.after_count, *told])
    headers = ["model", "prompt", "load", f"requests, {before}", f"requests, {after}", "verdict", f"p50, {before} (ms)",
               f"p50, {after} (ms)", "difference (ms)", "from (ms)", "to (ms)"]  # fmt: skip
    return Table(headers=headers, rows=rows)


def _bands(data: PageData) -> list[LengthBand]:
    comparison = data.ask(asked_comparison, state=data.state)
    bands: list[LengthBand] = data.ask(hit_against_miss) if comparison.kind != "cache" else data.ask(caching)[1]
    return bands


def _lengths(data: PageData) -> Context:
    bands = _bands(data)
    return chart_context(
        charts.lengths_figure(bands),
        [[band.hit_ms for band in bands] + [band.miss_ms for band in bands]],
        "No first tokens of known hits or misses in this range.",
        "TTFT of hits and misses needs workers started with --enable-prompt-tokens-details.",
        from_first=False,
    ) | {
        "bands": [
            {"words": length_words(band.length), "band": band, "told": _told(band.shift)}
            for band in bands
            if band.hit_count or band.miss_count
        ]
    }


def _lengths_table(data: PageData) -> Table:
    rows: list[list[Cell]] = []
    for band in _bands(data):
        shift = band.shift
        told: list[Cell] = [None, None, None] if shift is None else [shift.ms, shift.low_ms, shift.high_ms]
        figures: list[Cell] = [band.hit_count, band.miss_count, band.hit_ms, band.miss_ms]
        rows.append([length_words(band.length), *figures, *told])
    headers = ["prompt", "hits", "misses", "hit p50 (ms)", "miss p50 (ms)", "hit − miss (ms)", "from (ms)", "to (ms)"]
    return Table(headers=headers, rows=rows)


PANELS = (
    Panel("delta-verdict", "Verdict", "", _verdict, template="delta_verdict", of_tenants=True),
    Panel(
        "delta-choice",
        "Compare",
        "Before and after: spans of the page's range on both sides of the change, without the minute in which it was "
        "made. The other comparisons are of the page's range.",
        _choice,
        template="delta_choice",
        of_tenants=True,
    ),
    Panel(
        "delta-cohorts",
        "Difference by cohort",
        "Cohorts hold requests of one model, prompt length and load on the worker, so that longer prompts or a busier "
        "hour are not taken for an effect. The difference is Hodges and Lehmann's median of all pairs; its interval "
        "holds 95 % by the ranks of Mann and Whitney, wider by the histograms' error of 2.5 %. Requests that wait for "
        "each other scatter more than it says.",
        _cohorts,
        freshness.of_routers,
        "delta_cohorts",
        table=_cohorts_table,
        of_tenants=True,
    ),
    Panel(
        "delta-lengths",
        "Hit against miss by prompt length",
        "Medians. Hit: at least half of the prompt cached. Miss: nothing cached.",
        _lengths,
        freshness.of_routers,
        "delta_lengths",
        table=_lengths_table,
        of_tenants=True,
    ),
)
