"""Comparisons of TTFT in words, and what the page's state asks to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from controlplane.policies.models import Rollout
from controlplane.rollouts.selectors import progress_of
from controlplane.telemetry.cohorts import KINDS, Cohort, Comparison, Deltas
from controlplane.telemetry.shift import SAMPLES_MIN, Shift
from controlplane.telemetry.windows import Scope
from dashboard import numbers
from dashboard.scope import PageState

ROLLOUT = "rollout"
NAMES_MAX = 50
"""Of one side."""

KIND_WORDS = {
    "cache": "Cached against not cached",
    "change": "Before and after a change",
    "namespace": "Two namespaces",
    "template": "Two template versions",
    "model": "Two models",
    "worker": "Two workers, or groups of them",
    "router": "Two routers, or groups of them",
    ROLLOUT: "Routers without and with a roll-out",
}


def comparison_of(state: PageState, *, now: datetime) -> Comparison:
    """What the state asks for; what it leaves out is left out of the comparison."""
    if state.only == ROLLOUT:
        return _of_rollout(state.a, now)
    kind = state.only if state.only in KINDS else "cache"
    return Comparison(kind, at=_moment(state), a=_names(state.a), b=_names(state.b))


def asked_comparison(_scope: Scope, *, state: PageState, now: datetime) -> Comparison:
    """`comparison_of`, as a figure of the page: a roll-out is looked up once."""
    return comparison_of(state, now=now)


def _of_rollout(number: str, now: datetime) -> Comparison:
    rollout = Rollout.objects.filter(pk=int(number)).first() if number.isascii() and number.isdigit() else None
    if rollout is None:
        return Comparison("router")
    progress = progress_of(rollout, now=now)
    return Comparison("router", a=tuple(progress.routers_without), b=tuple(progress.routers_with))


def _moment(state: PageState) -> datetime | None:
    try:
        at = datetime.fromisoformat(state.at)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=state.zone)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for each in text.split(",")[:NAMES_MAX] if (name := each.strip()))


LENGTHS = ("< 512", "512 – 2 k", "2 – 8 k", "8 – 32 k", "≥ 32 k")
"""Of PROMPT_TOKENS_FROM."""
LOADS = ("idle worker", "1 – 3 beside", "4 – 15 beside", "≥ 16 beside")
"""Of REQUESTS_BESIDE_FROM."""


def length_words(place: int) -> str:
    """`2 – 8 k tokens`."""
    return f"{LENGTHS[place]} tokens"


def cohort_words(cohort: Cohort, *, with_model: bool = True) -> str:
    """`sim-llama · 2 – 8 k tokens · 1 – 3 beside`."""
    model = cohort.model if with_model else ""
    return " · ".join(part for part in (model, length_words(cohort.length), LOADS[cohort.load]) if part)


def tell_models_apart(cohorts: Sequence[Cohort]) -> bool:
    return len({cohort.model for cohort in cohorts}) > 1


def sides(deltas: Deltas) -> tuple[str, str]:
    """Words for side a and side b."""
    comparison = deltas.comparison
    if comparison.kind == "cache":
        return "not cached", "cached"
    if comparison.kind == "change":
        return "before", "after"
    return _several(comparison.a), _several(comparison.b)


def _several(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} of them"


def verdict(deltas: Deltas) -> tuple[str, str, str]:
    """(level, title, sentence): level is ok, warn or unknown."""
    if deltas.refused:
        return "unknown", "Nothing is compared", deltas.refused
    before, after = sides(deltas)
    if deltas.overall is None:
        return "unknown", "Too few samples", _too_few(deltas)
    shift = deltas.overall
    if shift.told == "same":
        title = f"No difference shown between {before} and {after}"
    else:
        title = f"First tokens come {numbers.milliseconds(abs(shift.ms))} {shift.told} {_when(deltas, after)}"
    return {"sooner": "ok", "later": "warn", "same": "unknown"}[shift.told], title, _evidence(deltas, shift)


def _when(deltas: Deltas, after: str) -> str:
    if deltas.comparison.kind == "change":
        return "after the change"
    return "where the prompt was cached" if deltas.comparison.kind == "cache" else f"with {after}"


def _evidence(deltas: Deltas, shift: Shift) -> str:
    cohorts = sum(cohort.shift is not None for cohort in deltas.cohorts)
    relative = "" if shift.share is None else f" ({_signed_percent(shift.share)} of the median)"
    return (
        f"{interval(shift)}{relative}, 95 % interval. From {shift.before_count:,} and {shift.after_count:,} requests "
        f"in {cohorts} matched {'cohort' if cohorts == 1 else 'cohorts'}, {numbers.percent(deltas.compared_share)} of "
        "all."
    )


def difference(shift: Shift) -> str:
    """In the unit of its interval, whatever its size."""
    return f"{numbers.significant(shift.ms)} ms"


def interval(shift: Shift) -> str:
    """`−96 … −71 ms`."""
    return f"{numbers.significant(shift.low_ms)} … {numbers.significant(shift.high_ms)} ms"


def _signed_percent(share: float) -> str:
    return f"{share * 100:+.0f} %".replace("-", "−")


def _too_few(deltas: Deltas) -> str:
    if not deltas.samples:
        return "No first tokens were measured on either side. Choose a longer range, or another comparison."
    return (
        f"No cohort has {SAMPLES_MIN} requests on both sides, of {deltas.samples:,} in all. Choose a longer range: "
        "a difference of fewer is not told from chance."
    )
