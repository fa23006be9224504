"""Where prompt tokens were lost, in words."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.telemetry.available_figures import NamedReach, Reach
from dashboard import numbers


@dataclass(frozen=True, slots=True)
class Cause:
    label: str
    icon: str
    explains: str
    """What happened to these tokens."""
    remedy: str


CAUSES = {
    "workload": Cause(
        "never repeated",
        "arrows-diff",
        "never came before in its namespace: no cache can serve them",
        "a stable beginning of the prompts would",
    ),
    "eviction": Cause(
        "eviction",
        "trash",
        "came before, but no worker holds them any more",
        "more KV memory, or less traffic that is never repeated, keeps them longer",
    ),
    "routing": Cause(
        "routing",
        "route",
        "were held by another worker than the chosen one",
        "that one was busy, full or leaving; more homes for hot prefixes, or another watermark, avoid it",
    ),
    "stale": Cause(
        "a stale index",
        "history",
        "were expected of the chosen worker and not delivered",
        "it evicted them unseen, or was still computing them for another request; KV events keep the index exact",
    ),
    "unknown": Cause(
        "unknown causes",
        "help-circle",
        "were computed for a reason that nobody knows",
        "workers have to name cached tokens (--enable-prompt-tokens-details); retries and prompts without text are not "
        "judged",
    ),
}

ROUTING_LOSSES = {
    "load": "waiting there would have cost more",
    "watermark": "it was above its watermark",
    "drain": "it was draining",
    "breaker": "it was ejected after failures",
    "retry": "it was tried before",
    "choice": "another was better on the whole",
    "other": "other reasons",
}


@dataclass(frozen=True, slots=True)
class ReachRow:
    """A line of the tables: what is known of one namespace, model, template or worker."""

    name: str
    reach: Reach
    cause: Cause | None
    sentence: str

    @property
    def available(self) -> float | None:
        return self.reach.share(self.reach.repeated_tokens)

    @property
    def captured(self) -> float | None:
        return self.reach.share(self.reach.expected_hit_tokens)

    @property
    def delivered(self) -> float | None:
        return self.reach.share(self.reach.hit_tokens)


def reach_row(named: NamedReach) -> ReachRow:
    cause = CAUSES.get(named.reach.main_cause)
    return ReachRow(named.name, named.reach, cause, sentence(named.reach))


def sentence(reach: Reach) -> str:
    """Like "41.3 % of prompt tokens came before, but no worker holds them any more; more KV memory …"."""
    if not reach.prompt_tokens:
        return "No prompt tokens in this range."
    cause = reach.main_cause
    if not cause:
        return "Every prompt token came from a cache."
    begin = f"{numbers.percent(reach.share(reach.losses[cause]))} of prompt tokens {CAUSES[cause].explains}"
    next_ = _avoidable(reach) if cause == "workload" else ""
    if next_:
        share = numbers.percent(reach.share(reach.losses[next_]))
        return f"{begin}. Most of what could be had is lost to {CAUSES[next_].label}: {share}."
    return f"{begin}; {CAUSES[cause].remedy}."


def headline(reach: Reach | None) -> tuple[str, str]:
    """What the whole comes to: some words and a sentence."""
    if reach is None:
        return "No router has reported in this range", "Choose a longer range, or see whether a router runs."
    if not reach.prompt_tokens:
        return "No prompts in this range", "Routers report, but no prompt came."
    available, delivered = reach.share(reach.repeated_tokens), reach.share(reach.hit_tokens)
    title = f"{numbers.percent(delivered)} of prompt tokens came from caches"
    return title, f"{numbers.percent(available)} came before and could have. {_largest(reach)}"


def _largest(reach: Reach) -> str:
    cause = _avoidable(reach)
    if not cause:
        return "Nothing that could be had was lost."
    share = numbers.percent(reach.share(reach.losses[cause]))
    return f"Most of what was missed, {share} of prompt tokens: {CAUSES[cause].label}; they {CAUSES[cause].explains}."


def _avoidable(reach: Reach) -> str:
    """The cause that lost most of what could be had, "" for none: the workload's own share is no loss of the fleet."""
    losses = {cause: tokens for cause, tokens in reach.losses.items() if cause != "workload" and tokens > 0}
    return max(losses, key=losses.__getitem__, default="")
