"""Recorded traffic as a workload: who came when, with what length and which shared prefix, as it was.

Sessions (units of the recording) are the grain in which traffic is made less or more: a fleet of which a slice is
simulated gets its share of them, a recording of a share of the traffic is filled up with copies, and so is a higher
load. A copy behaves as its session did, shares its head and has the rest to itself. A seed chooses the sessions and
moves each by a few seconds. Within a session a request waits for the answer that its client had when it sent it, and
then as long as recorded: a slower fleet slows its clients.

A request's blocks are named when it arrives and forgotten when it ends (`Replay`), so that memory holds the requests
under way and one small row for each recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.contract.recorded import RecordedRequest
from simulator.fleet.demand import demand_s
from simulator.fleet.engine import Sequence as Running
from simulator.fleet.hardware import GpuProfile
from simulator.fleet.measure import WARM_UP_SHARE
from simulator.fleet.policy import Choice, Policy, WorkerView
from simulator.fleet.recorded_names import Grain, Prompt, mixed
from simulator.fleet.workload import BLOCK_TOKENS, Request

MOVED_S = 5.0
"""A session comes up to so much later than recorded."""
COPY_MOVED_S = 60.0
MOVED_SHARE_MAX = 0.05
"""Of the recorded time."""


class RecordedWorkload:
    """`wanted`: of the whole traffic, as a share; above 1 sessions have copies."""

    def __init__(
        self, prompts: Sequence[Prompt], ratios: dict[str, float], profile: GpuProfile, *,
        wanted: float, seed: int, mended: bool = False, block_tokens: int = BLOCK_TOKENS,
    ) -> None:  # fmt: skip
        """Raises ValueError without requests."""
        if not prompts:
            raise ValueError("the recording holds no requests of this fleet")
        self._began_at = prompts[0].recorded.at
        self._span_s = max(1.0, prompts[-1].recorded.at - self._began_at)
        self.duration_s = self._span_s
        self.mended = mended
        self.block_tokens = block_tokens
        self.sources: list[tuple[Prompt, int]] = []
        """Of each request: what was recorded, and the number of the copy."""
        self._requests: list[Request] = []
        self._first: list[Request] = []
        self._next: dict[int, tuple[Request, float]] = {}
        """After the request with this id: what its client sends, and how long after the answer."""
        self._of: dict[tuple[int, int], Request] = {}
        for prompt in prompts:
            for copy in range(copies(prompt, wanted, seed)):
                self._add(prompt, copy, seed)
        del self._of
        self._grains = _grains(prompts, ratios, block_tokens)
        self.demand_s = _demand_s(self._requests, profile)

    def first(self) -> list[Request]:
        return self._first

    def after(self, request: Request, finished_s: float) -> Request | None:
        following, after_s = self._next.get(request.id, (None, 0.0))
        if following is not None:
            following.arrival_s = finished_s + after_s
        return following

    def __len__(self) -> int:
        return len(self._requests)

    def name_blocks(self, request: Request) -> None:
        prompt, copy = self.sources[request.id]
        grain = self._grains[prompt.recorded.namespace]
        request.chain, request.text_hashes = grain.names(prompt, copy=copy, mended=self.mended)

    def _add(self, prompt: Prompt, copy: int, seed: int) -> None:
        recorded, before = prompt.recorded, prompt.before
        moved_s = min(COPY_MOVED_S if copy else MOVED_S, MOVED_SHARE_MAX * self._span_s)
        at = recorded.at - self._began_at + moved_s * _share(prompt.unit, seed, copy + 1)
        request = Request(
            id=len(self._requests), arrival_s=at, prompt_tokens=recorded.prompt_tokens,
            output_tokens=max(1, recorded.output_tokens), chain=[], text_hashes=[],
            affinity=mixed(prompt.unit, copy, 0), block_tokens=self.block_tokens,
        )  # fmt: skip
        self._requests.append(request)
        self._of[prompt.number, copy] = request
        led_by = self._of.get((before.number, copy)) if before is not None else None
        if led_by is None:
            self._first.append(request)
        else:
            self._next[led_by.id] = (request, prompt.after_s)
        self.sources.append((prompt, copy))


class Replay(Policy):
    """Another policy over recorded traffic: names blocks in time, sums up what prefill cost, tells how far it is."""

    def __init__(
        self, inner: Policy, workload: RecordedWorkload, profile: GpuProfile, told: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._workload = workload
        self._profile = profile
        self._told = told
        self._measured_from_s = WARM_UP_SHARE * workload.duration_s
        self.prefill_s = 0.0
        """GPU seconds of the measured requests' uncached tokens."""

    def choose(self, request: Request, workers: list[WorkerView], now: float) -> Choice:
        self._workload.name_blocks(request)
        self._told()
        return self._inner.choose(request, workers, now)

    def first_token(self, sequence: Running, now: float) -> None:
        request, cached = sequence.request, sequence.cached_tokens or 0
        if request.arrival_s >= self._measured_from_s:
            self.prefill_s += self._profile.prefill_s(request.prompt_tokens - cached, context_tokens=cached)
        self._inner.first_token(sequence, now)

    def finished(self, sequence: Running, now: float) -> None:
        self._inner.finished(sequence, now)
        sequence.request.chain, sequence.request.text_hashes = [], []

    def sampled(self, workers: list[WorkerView], now: float) -> None:
        self._inner.sampled(workers, now)


def copies(prompt: Prompt, wanted: float, seed: int) -> int:
    """How often a request is simulated where `wanted` of the traffic is: the same for all of a unit."""
    times = wanted / prompt.recorded.share
    whole = int(times)
    return whole + (_share(prompt.unit, seed, 0) < times - whole)


def measured_part(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Those behind the time in which simulated caches fill."""
    began, ended = requests[0].at, requests[-1].at
    return [each for each in requests if each.at >= began + WARM_UP_SHARE * (ended - began)]


def _grains(prompts: Sequence[Prompt], ratios: dict[str, float], block_tokens: int) -> dict[str, Grain]:
    longest = max(each.recorded.prompt_tokens + max(1, each.recorded.output_tokens) for each in prompts)
    return {name: Grain(ratio, block_tokens, longest) for name, ratio in ratios.items()}


def _demand_s(requests: Sequence[Request], profile: GpuProfile) -> float:
    """As if no prompt were known."""
    if not requests:
        return 0.0
    prompt = sum(each.prompt_tokens for each in requests) // len(requests)
    output = sum(each.output_tokens for each in requests) // len(requests)
    return demand_s(profile, prompt_tokens=prompt, output_tokens=output, known=0)


def _share(unit: int, seed: int, purpose: int) -> float:
    """0 ≤ x < 1, the same for all requests of a unit."""
    return mixed(unit, seed, purpose + 1) / 2**64
