"""Prometheus exposition of the router's counters: read when scraped, so that requests pay nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from router.adapters.peers import PeersState
from router.adapters.telemetry_totals import Totals
from router.contract.histogram import GAMMA, Buckets
from router.contract.ids import PoolId
from router.contract.telemetry import RouterState

TTFT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
DECISION_BOUNDS_S = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 10e-3)
WORKER_STATES = ("ready", "full", "drain", "maintenance", "ejected")


class RouterCollector(Collector):
    def __init__(
        self,
        *,
        router_id: str,
        totals: Totals,
        state: Callable[[], RouterState],
        peers: Callable[[], PeersState] | None = None,
        exact: Callable[[], Mapping[PoolId, str]],
        code: str = "interpreted",
    ) -> None:
        """`exact`: status of each pool that names a tokenizer; `exact` is the one that counts. `code`: `compiled` or
        `interpreted`."""
        self._router_id = router_id
        self._totals = totals
        self._state = state
        self._peers = peers
        self._exact = exact
        self._code = code

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._tokens()
        yield _histogram_by_cache(self._totals.ttft_ms)
        yield _decisions(self._totals.decision_us)
        yield from self._isolation_and_spills()
        yield from self._pulls()
        yield from self._gauges(self._state())
        if self._peers is not None:
            yield from _peer_gauges(self._peers())
        yield _exact_pools(self._exact())
        compiled = float(self._code == "compiled")
        yield GaugeMetricFamily("tidemark_router_compiled", "1 when the hot modules are native code.", compiled)

    def _requests(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "tidemark_router_requests", "Requests by how they ended.", labels=["model", "tenant", "outcome"]
        )
        for labels, count in self._totals.requests.items():
            family.add_metric(labels, count)
        yield family
        for name, text, value in (
            ("tidemark_router_retries", "Requests sent to a second worker.", self._totals.retries),
            ("tidemark_router_unknown_fields", "Undocumented fields in requests.", self._totals.unknown_fields),
            ("tidemark_router_templates_ignored", "Requests naming no known template.", self._totals.templates_ignored),
        ):
            yield CounterMetricFamily(name, text, value)

    def _tokens(self) -> Iterator[Metric]:
        for name, text, values in (
            ("tidemark_prefix_hit_tokens", "Cached prompt tokens, as workers reported.", self._totals.hit_tokens),
            ("tidemark_prefix_query_tokens", "Prompt tokens where cached ones are known.", self._totals.query_tokens),
            ("tidemark_predicted_hit_tokens", "Cached tokens predicted.", self._totals.predicted_hit_tokens),
        ):
            family = CounterMetricFamily(name, text, labels=["model", "tenant"])
            for labels, count in values.items():
                family.add_metric(labels, count)
            yield family

    def _isolation_and_spills(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "tidemark_isolation_violations", "Answers with more cached tokens than possible.", labels=["type"]
        )
        family.add_metric(["bound"], self._totals.violations)
        yield family
        spills = CounterMetricFamily(
            "tidemark_router_spills", "Requests off their preferred worker.", labels=["reason"]
        )
        for reason, count in self._totals.spills.items():
            spills.add_metric([reason], count)
        yield spills

    def _pulls(self) -> Iterator[Metric]:
        text = "Prompts whose KV one worker was to pull from another, by how that went."
        family = CounterMetricFamily("tidemark_router_pulls", text, labels=["result"])
        for result, count in self._totals.pulls.items():
            family.add_metric([result], count)
        yield family
        text = "Prompt tokens whose KV was pulled from another worker."
        yield CounterMetricFamily("tidemark_pulled_tokens", text, self._totals.pulled_tokens)

    def _gauges(self, state: RouterState) -> Iterator[Metric]:
        revision = GaugeMetricFamily("tidemark_policy_revision", "Snapshot version in force.", labels=["router"])
        revision.add_metric([self._router_id], state.snapshot_version)
        yield revision
        epoch = GaugeMetricFamily("tidemark_policy_epoch", "Revocations acknowledged up to it.", labels=["router"])
        epoch.add_metric([self._router_id], state.epoch)
        yield epoch
        for name, text, value in (
            ("tidemark_router_inflight", "Requests under way.", state.inflight),
            ("tidemark_index_blocks", "Blocks in the prefix index.", state.index_blocks),
            ("tidemark_index_bytes", "Size of the prefix index.", state.index_bytes),
            ("tidemark_telemetry_dropped", "Shipments lost since the start.", state.stream_dropped),
        ):
            yield GaugeMetricFamily(name, text, value)
        if state.snapshot_version:
            text = "Since the snapshot was last confirmed to be the newest."
            yield GaugeMetricFamily("tidemark_policy_age_seconds", text, state.snapshot_age_s)
        yield _worker_states(state.worker_states)
        outstanding = GaugeMetricFamily(
            "tidemark_worker_outstanding", "Requests under way by worker.", labels=["worker"]
        )
        for worker, count in state.worker_outstanding.items():
            outstanding.add_metric([worker], count)
        yield outstanding


def _peer_gauges(state: PeersState) -> Iterator[Metric]:
    """How far this router's view is from that of the other routers and of the pollers."""
    yield GaugeMetricFamily("tidemark_router_peers", "Other routers whose load is heard.", len(state.ages_s))
    for name, text, label, values in (
        ("tidemark_router_peer_age_seconds", "Since a peer's load was last heard.", "peer", state.ages_s),
        ("tidemark_router_peer_snapshot_lag", "Own snapshot version less the peer's.", "peer", state.snapshot_lags),
        (
            "tidemark_worker_load_unexplained",
            "Requests in the worker's last sample beyond what the routers tell of.",
            "worker",
            state.unexplained,
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], value)
        yield family


def _exact_pools(statuses: Mapping[PoolId, str]) -> Metric:
    text = (
        "1 for a pool whose prompts are matched by its workers' own blocks, 0 for one that names a tokenizer in vain."
    )
    family = GaugeMetricFamily("tidemark_pool_exact", text, labels=["pool"])
    for pool, status in statuses.items():
        family.add_metric([pool], 1.0 if status == "exact" else 0.0)
    return family


def render_metrics(collector: RouterCollector) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _worker_states(states: Mapping[str, str]) -> Metric:
    family = GaugeMetricFamily("tidemark_worker_state", "1 for the worker's current state.", labels=["worker", "state"])
    for worker, current in states.items():
        for state in WORKER_STATES:
            family.add_metric([worker, state], 1.0 if state == current else 0.0)
    return family


def _histogram_by_cache(by_cache: Mapping[str, Buckets]) -> Metric:
    family = HistogramMetricFamily("tidemark_ttft_seconds", "Time to first token of streams.", labels=["cache"])
    for cache, buckets in by_cache.items():
        rows, total = _cumulative(buckets, TTFT_BOUNDS_S, unit_s=1e-3)
        family.add_metric([cache], rows, total)
    return family


def _decisions(buckets: Buckets) -> Metric:
    family = HistogramMetricFamily("tidemark_router_decision_seconds", "Fingerprint, choice and reservation.")
    rows, total = _cumulative(buckets, DECISION_BOUNDS_S, unit_s=1e-6)
    family.add_metric([], rows, total)
    return family


def _cumulative(
    buckets: Buckets, bounds_s: tuple[float, ...], *, unit_s: float
) -> tuple[list[tuple[str, float]], float]:
    """Log buckets as Prometheus ones; each counts by its middle, so a bound is off by at most 2.5 %."""
    middles = [(GAMMA ** (index - 0.5) * unit_s, count) for index, count in buckets.items()]
    rows = [(str(bound), float(sum(count for middle, count in middles if middle <= bound))) for bound in bounds_s]
    rows.append(("+Inf", float(sum(buckets.values()))))
    return rows, sum(middle * count for middle, count in middles)
