"""What is asked of recorded traffic, and what is answered: the JSON of `python -m simulator what-if`.

The first scenario is the fleet as it is. A field that a scenario does not name is as it is. Figures of an answer are of
the part of the recording behind its first quarter, in which the simulated caches fill; what is measured is taken from
the same part.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from router.contract.snapshot import Watermark
from simulator.fleet.hardware import H200_8B, PROFILES
from simulator.fleet.policies import POLICIES

SCENARIOS_MAX = 12
SEEDS_MAX = 10
WORKERS_MAX = 1_024


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scenario."""

    name: str = ""
    workers: int | None = None
    low: float | None = None
    high: float | None = None
    """Watermarks."""
    policy: str | None = None
    """A routing rule: one of `policies.POLICIES`."""
    template_fixed: bool = False
    """Changing text in front of prompts moved behind what they share."""
    kv_capacity_factor: float = 1.0
    shared_tier_gib: float = 0.0
    load_factor: float = 1.0
    """Sessions at a time; each behaves as recorded."""

    @property
    def label(self) -> str:
        return self.name or ", ".join(f"{name} {value}" for name, value in self._changes()) or "as it is"

    def _changes(self) -> list[tuple[str, Any]]:
        fields = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        return [(name, value) for name, usual in fields if (value := getattr(self, name)) != usual]


class Marks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    low: float = 0.65
    high: float = 0.85


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workers: int
    scenarios: list[Asked]
    kv_capacity_tokens: int | None = None
    """Of one worker; None = the profile's."""
    prefill_tokens_per_s: float | None = None
    profile: str = H200_8B.name
    watermark: Marks = Marks()
    policy: str = "tidemark"
    good_s: float = 2.0
    """A first token within it is good."""
    gpu_price_per_h: float | None = None
    gpus_per_worker: int = 1
    seeds: tuple[int, ...] = (1,)
    pool: str | None = None
    """Of a recording of several: this one alone."""

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence for whoever asks."""
        _check(0 < len(self.scenarios) <= SCENARIOS_MAX, f"ask for 1 to {SCENARIOS_MAX} scenarios")
        _check(0 < len(self.seeds) <= SEEDS_MAX, f"name 1 to {SEEDS_MAX} seeds")
        _check(self.profile in PROFILES, f"profile is one of {', '.join(PROFILES)}")
        _check(_within(self.good_s, 0.001, 3_600), "good_s is between 0.001 and 3,600 seconds")
        _check(1 <= self.gpus_per_worker <= 1_024, "gpus_per_worker is between 1 and 1,024")
        _check(self.kv_capacity_tokens is None or self.kv_capacity_tokens > 0, "kv_capacity_tokens is above 0")
        _check(self.prefill_tokens_per_s is None or _within(self.prefill_tokens_per_s, 1, 1e8),
               "prefill_tokens_per_s is between 1 and 100,000,000")  # fmt: skip
        _check(self.gpu_price_per_h is None or _within(self.gpu_price_per_h, 0, 1e6), "gpu_price_per_h is not negative")
        for asked in self.scenarios:
            self._check_scenario(asked)

    def _check_scenario(self, asked: Asked) -> None:
        where = f"scenario {asked.label!r}: "
        _check(1 <= self.workers_of(asked) <= WORKERS_MAX, f"{where}workers are between 1 and {WORKERS_MAX}")
        _check(self.policy_of(asked) in POLICIES, f"{where}policy is one of {', '.join(POLICIES)}")
        mark = self.watermark_of(asked)
        _check(0 < mark.low < mark.high <= 1, f"{where}watermarks are 0 < low < high ≤ 1")
        _check(_within(asked.kv_capacity_factor, 0.01, 100), f"{where}kv_capacity_factor is between 0.01 and 100")
        _check(_within(asked.load_factor, 0.01, 20), f"{where}load_factor is between 0.01 and 20")
        _check(_within(asked.shared_tier_gib, 0, 1e6), f"{where}shared_tier_gib is not negative")

    def workers_of(self, asked: Asked) -> int:
        return self.workers if asked.workers is None else asked.workers

    def policy_of(self, asked: Asked) -> str:
        return asked.policy or self.policy

    def watermark_of(self, asked: Asked) -> Watermark:
        low = self.watermark.low if asked.low is None else asked.low
        return Watermark(low=low, high=self.watermark.high if asked.high is None else asked.high)


class Interval(msgspec.Struct, frozen=True):
    """Over the seeds; with one seed all three are the same."""

    mean: float
    low: float
    high: float


class Outcome(msgspec.Struct, kw_only=True):
    """One scenario's figures. None is unknown. Sums over time are of the whole fleet and all of its traffic."""

    name: str
    workers: int
    requests: Interval
    """Simulated and measured; where a slice or a part is simulated, its own."""
    unfinished: Interval
    hit_token_share: Interval | None
    ttft_p50_s: Interval | None
    ttft_p95_s: Interval | None
    goodput_share: Interval | None
    """First tokens within `good_s`."""
    evictions_per_min: Interval
    """Blocks of `block_tokens` in a minute."""
    gpu_seconds_prefill: Interval
    gpu_seconds_saved_against_as_it_is: Interval | None
    """Each seed beside the same seed; None for the fleet as it is."""
    cost_per_h: float | None
    note: str = ""
    """What a reader has to know of this scenario."""


class Measured(msgspec.Struct, kw_only=True):
    """What the recording itself says."""

    requests: int
    hit_token_share: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    since: float
    until: float


class Deviation(msgspec.Struct, kw_only=True):
    """Simulated as it is − measured."""

    hit_token_share: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None


class Sampled(msgspec.Struct, kw_only=True):
    share: float
    """Of the traffic that the recording holds."""
    scaled: str
    """How the rest is made up for: a sentence."""
    dropped: int = 0


class Answer(msgspec.Struct, kw_only=True):
    scenarios: list[Outcome]
    measured: Measured
    error: Deviation
    sampled: Sampled
    seeds: list[int]
    slice_workers: int | None
    """Of a larger fleet only so many are simulated, with their share of the sessions."""
    block_tokens: int
    """The grain of the simulated caches."""


def read_question(data: bytes) -> Question:
    """Raises ValueError with one sentence."""
    try:
        return msgspec.json.decode(data, type=Question)
    except msgspec.ValidationError as error:
        raise ValueError(f"the question is wrong: {error}") from None
    except msgspec.DecodeError:
        raise ValueError("the question is not JSON") from None


def _within(value: float, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
