"""Rollups of what routers and pollers saw, in three widths (10 s, 1 min, 1 h), and sampled decisions.

Dimensions are ids as text, not foreign keys: history outlives what it speaks of. Histograms are bucket counts,
never quantiles, so any rows can be summed. An absent row means nothing was reported: a gap, not a zero.
"""

from __future__ import annotations

from django.db import models


class Width(models.IntegerChoices):
    TEN_SECONDS = 10, "10 s"
    MINUTE = 60, "1 min"
    HOUR = 3600, "1 h"


class RequestSums(models.Model):
    """Sums of `router.contract.telemetry.RequestRow`, same field names and meanings."""

    width_s = models.PositiveIntegerField(choices=Width)
    start = models.DateTimeField()

    requests = models.PositiveBigIntegerField(default=0)
    errors = models.JSONField(default=dict)
    retries = models.PositiveBigIntegerField(default=0)
    spills = models.JSONField(default=dict)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    usage_known = models.PositiveBigIntegerField(default=0)
    hit_tokens = models.PositiveBigIntegerField(default=0)
    hit_known = models.PositiveBigIntegerField(default=0)
    hit_prompt_tokens = models.PositiveBigIntegerField(default=0)
    predicted_hit_tokens = models.PositiveBigIntegerField(default=0)
    saved_prefill_ms = models.FloatField(default=0)
    ttft_hit = models.JSONField(default=dict)
    ttft_partial = models.JSONField(default=dict)
    ttft_miss = models.JSONField(default=dict)
    ttft_unknown = models.JSONField(default=dict)
    duration = models.JSONField(default=dict)
    decision_us = models.JSONField(default=dict)
    slo_met = models.PositiveBigIntegerField(default=0)
    slo_known = models.PositiveBigIntegerField(default=0)
    isolation_checked = models.PositiveBigIntegerField(default=0)
    isolation_unknown = models.PositiveBigIntegerField(default=0)
    isolation_violations = models.PositiveBigIntegerField(default=0)

    class Meta:
        abstract = True


class RequestRollup(RequestSums):
    """The sums by every dimension: as many rows a bucket as there are combinations with traffic."""

    tenant = models.CharField(max_length=48, blank=True)
    namespace = models.CharField(max_length=100, blank=True)
    pool = models.CharField(max_length=48, blank=True)
    worker = models.CharField(max_length=100, blank=True)
    model = models.CharField(max_length=200, blank=True)
    template = models.CharField(max_length=64, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("width_s", "start", "tenant", "namespace", "pool", "worker", "model", "template"),
                name="request_rollup_unique",
            ),
        ]
        indexes = [
            models.Index(fields=("width_s", "tenant", "start"), name="request_rollup_tenant"),
            models.Index(fields=("width_s", "worker", "start"), name="request_rollup_worker"),
        ]


class RequestTotal(RequestSums):
    """The same sums by pool and model alone, written together with RequestRollup: what the whole fleet is asked is a
    few rows a bucket, however many tenants and workers it has."""

    pool = models.CharField(max_length=48, blank=True)
    model = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "pool", "model"), name="request_total_unique"),
        ]


class TenantTotal(models.Model):
    """What the requests of a tenant came to on a day, written together with RequestRollup: a week of a thousand tenants
    is read from some thousand rows, and from hours at its ends."""

    width_s = models.PositiveIntegerField()
    """A day's."""
    start = models.DateTimeField()
    """Midnight, UTC."""
    tenant = models.CharField(max_length=48)

    requests = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    hit_tokens = models.PositiveBigIntegerField(default=0)
    hit_prompt_tokens = models.PositiveBigIntegerField(default=0)
    slo_met = models.PositiveBigIntegerField(default=0)
    slo_known = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "tenant"), name="tenant_total_unique"),
        ]


class SliceRollup(models.Model):
    """How far reuse reached and TTFT by cohort, of one router, one worker or one namespace and template.

    Three slices of the same requests instead of their product: a fleet of W workers and N namespaces has W + N rows a
    bucket, and what the whole fleet is asked is answered by the rows of its few routers. So a namespace's figures on
    one worker are not kept. Its widths are `windows.SLICE_RETENTION_S`.
    """

    class Slice(models.TextChoices):
        ROUTER = "router"
        WORKER = "worker"
        NAMESPACE = "namespace"

    width_s = models.PositiveIntegerField()
    start = models.DateTimeField()
    slice = models.CharField(max_length=10, choices=Slice)
    name = models.CharField(max_length=100)
    """Id of the router, worker or namespace."""
    tenant = models.CharField(max_length=48, blank=True)
    """Of the namespace, like the template; "" in the other slices."""
    template = models.CharField(max_length=64, blank=True)
    pool = models.CharField(max_length=48, blank=True)
    model = models.CharField(max_length=200, blank=True)

    requests = models.PositiveBigIntegerField(default=0)
    """Whose worker named its cached tokens; all token sums but the next are theirs."""
    unknown_prompt_tokens = models.PositiveBigIntegerField(default=0)
    """Of the requests whose worker did not."""
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    repeated_tokens = models.PositiveBigIntegerField(default=0)
    best_hit_tokens = models.PositiveBigIntegerField(default=0)
    expected_hit_tokens = models.PositiveBigIntegerField(default=0)
    hit_tokens = models.PositiveBigIntegerField(default=0)
    unjudged_tokens = models.PositiveBigIntegerField(default=0)
    saved_prefill_ms = models.FloatField(default=0)
    routing_loss = models.JSONField(default=dict)
    hit_size = models.JSONField(default=dict)
    cohorts = models.JSONField(default=dict)
    """TTFT: `router.contract.cohorts`."""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("slice", "width_s", "start", "name", "tenant", "template", "pool", "model"),
                name="slice_rollup_unique",
            ),
        ]
        indexes = [models.Index(fields=("slice", "tenant", "width_s", "start"), name="slice_rollup_tenant")]


class WorkerRollup(models.Model):
    """Gauges (sum, max, samples) and counter increases of one worker, from polls and KV events."""

    width_s = models.PositiveIntegerField(choices=Width)
    start = models.DateTimeField()
    worker = models.CharField(max_length=100)

    polls_ok = models.PositiveIntegerField(default=0)
    polls_failed = models.PositiveIntegerField(default=0)
    running_sum = models.FloatField(default=0)
    running_max = models.FloatField(default=0)
    running_samples = models.PositiveIntegerField(default=0)
    waiting_sum = models.FloatField(default=0)
    waiting_max = models.FloatField(default=0)
    waiting_samples = models.PositiveIntegerField(default=0)
    kv_use_sum = models.FloatField(default=0)
    kv_use_max = models.FloatField(default=0)
    kv_use_samples = models.PositiveIntegerField(default=0)
    delta_samples = models.PositiveIntegerField(default=0)
    """Polls that had a predecessor without reset: only those give increases."""
    counter_resets = models.PositiveIntegerField(default=0)
    prefix_query_tokens = models.PositiveBigIntegerField(default=0)
    prefix_hit_tokens = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    prompt_tokens_by_source = models.JSONField(default=dict)
    generation_tokens = models.PositiveBigIntegerField(default=0)
    preemptions = models.PositiveBigIntegerField(default=0)
    requests_finished = models.PositiveBigIntegerField(default=0)
    ttft_buckets = models.JSONField(default=dict)
    """vLLM's own upper bounds (text of `le`) → increase, not cumulative over buckets."""
    ttft_sum_s = models.FloatField(default=0)
    ttft_count = models.PositiveBigIntegerField(default=0)
    queue_buckets = models.JSONField(default=dict)
    queue_sum_s = models.FloatField(default=0)
    queue_count = models.PositiveBigIntegerField(default=0)

    kv_samples = models.PositiveIntegerField(default=0)
    """Seconds reported by the KV-event subscriber; 0 = churn unknown."""
    stored_blocks = models.PositiveBigIntegerField(default=0)
    removed_blocks = models.PositiveBigIntegerField(default=0)
    restored_blocks = models.PositiveBigIntegerField(default=0)
    cleared = models.PositiveIntegerField(default=0)
    event_gaps = models.PositiveIntegerField(default=0)
    resident_blocks = models.PositiveBigIntegerField(null=True)
    """At the end; null = unknown."""

    loaded_bytes = models.PositiveBigIntegerField(default=0)
    """KV loaded from other tiers and workers, where the connector counts it."""
    load_s = models.FloatField(default=0)
    """Time of those transfers, added up."""

    gpu_samples = models.PositiveIntegerField(default=0)
    gpu_util_sum = models.FloatField(default=0)
    gpu_memory_used_max_mib = models.FloatField(default=0)
    gpu_power_sum_w = models.FloatField(default=0)
    xid_errors = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "worker"), name="worker_rollup_unique"),
        ]
        indexes = [models.Index(fields=("width_s", "worker", "start"), name="worker_rollup_worker")]


class WorkerTotal(models.Model):
    """What the workers of a pool did together, written with WorkerRollup: a row a bucket, however many workers."""

    width_s = models.PositiveIntegerField(choices=Width)
    start = models.DateTimeField()
    pool = models.CharField(max_length=48)

    delta_samples = models.PositiveIntegerField(default=0)
    prompt_tokens_by_source = models.JSONField(default=dict)
    loaded_bytes = models.PositiveBigIntegerField(default=0)
    load_s = models.FloatField(default=0)
    kv_use_samples = models.PositiveIntegerField(default=0)
    kv_use_max = models.FloatField(default=0)
    kv_samples = models.PositiveIntegerField(default=0)
    """Seconds reported by KV-event subscribers, of all workers; 0 = churn unknown."""
    stored_per_min = models.FloatField(default=0)
    removed_per_min = models.FloatField(default=0)
    restored_per_min = models.FloatField(default=0)
    """Blocks a minute, summed over the workers, each at the rate of its own reported seconds."""
    event_gaps = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "pool"), name="worker_total_unique"),
        ]


class PrefixHeatRollup(models.Model):
    """Requests of a hot prefix by worker. `prefix` is a keyed id."""

    width_s = models.PositiveIntegerField(choices=Width)
    start = models.DateTimeField()
    namespace = models.CharField(max_length=100)
    pool = models.CharField(max_length=48)
    prefix = models.CharField(max_length=32)
    tokens = models.PositiveBigIntegerField(default=0)
    """Of the depth at which prefixes are told apart."""
    requests = models.PositiveBigIntegerField(default=0)
    by_worker = models.JSONField(default=dict)
    head_tokens = models.PositiveBigIntegerField(default=0)
    """As far as its requests agree; 0 = unknown."""
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    hit_tokens = models.PositiveBigIntegerField(default=0)
    """Predicted for the chosen workers."""
    queue_ms = models.FloatField(default=0)
    """Predicted on the chosen workers, added up."""
    spills = models.PositiveBigIntegerField(default=0)
    placed = models.PositiveBigIntegerField(default=0)
    """Requests under a placement rule."""
    load = models.FloatField(default=0)
    """The most of the bucket, as a share of what one worker can do."""
    homes = models.PositiveIntegerField(default=0)
    """The most of the bucket; 0 = unknown."""
    holders = models.JSONField(default=list)
    """Workers that a router believed to hold it at the end."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "pool", "namespace", "prefix"), name="heat_unique"),
        ]
        indexes = [models.Index(fields=("prefix", "width_s", "start"), name="heat_of_prefix")]


class EvictionRollup(models.Model):
    """What became of a pool's cached blocks, from KV events: sums of `router.contract.telemetry.KvRow`."""

    width_s = models.PositiveIntegerField(choices=Width)
    start = models.DateTimeField()
    pool = models.CharField(max_length=48)
    seconds = models.PositiveBigIntegerField(default=0)
    """Worker-seconds that were heard."""
    evicted = models.JSONField(default=dict)
    """`<who stored next>EVICTS<whose they were>` → blocks."""
    restored_of = models.JSONField(default=dict)
    """Namespace → blocks that came back within RESTORE_WINDOW_S of their removal."""
    lifetime = models.JSONField(default=dict)
    """Buckets of milliseconds from storing to removal."""
    restore_gap = models.JSONField(default=dict)
    """Buckets of milliseconds from removal to return."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "pool"), name="eviction_rollup_unique"),
        ]


class PrefixBreakRollup(models.Model):
    """Prompts that were looked at in an hour, and those whose prefix an early change cut off. No text."""

    start = models.DateTimeField()
    namespace = models.CharField(max_length=100)
    pool = models.CharField(max_length=48)
    template = models.CharField(max_length=64, blank=True)
    kind = models.CharField(max_length=20, blank=True)
    """One of `router.contract.telemetry.BREAK_KINDS`, `other`; "" = all that were looked at."""
    prompts = models.PositiveBigIntegerField(default=0)
    lost_bytes = models.PositiveBigIntegerField(default=0)
    """Shared text behind the change, of all of them."""
    position_bytes = models.PositiveBigIntegerField(default=0)
    """The least: where the line with the change begins in the canonical text."""
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=("start", "namespace", "pool", "template", "kind"), name="prefix_break_unique"
            ),
        ]


class DecisionRecord(models.Model):
    """A sampled decision with its candidates: `router.contract.telemetry.DecisionSample` in `detail`."""

    request_id = models.CharField(max_length=64, unique=True)
    at = models.DateTimeField(db_index=True)
    tenant = models.CharField(max_length=48)
    namespace = models.CharField(max_length=100)
    pool = models.CharField(max_length=48)
    worker = models.CharField(max_length=100, blank=True)
    outcome = models.CharField(max_length=30)
    reason = models.CharField(max_length=30)
    ttft_ms = models.FloatField(null=True)
    model = models.CharField(max_length=200, blank=True)
    predicted_hit_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    """Delivered; null = the worker did not say."""
    detail = models.JSONField()


class RecordedChunk(models.Model):
    """Recorded requests of one router, second, namespace and pool: `router.contract.recorded`. No text."""

    start = models.DateTimeField(db_index=True)
    """Of the second in which the requests finished."""
    source = models.CharField(max_length=100)
    tenant = models.CharField(max_length=48)
    namespace = models.CharField(max_length=100)
    pool = models.CharField(max_length=48)
    requests = models.PositiveIntegerField()
    dropped = models.PositiveBigIntegerField(default=0)
    """Of the router's second, told with one of its chunks."""
    size_bytes = models.PositiveIntegerField()
    data = models.BinaryField()
    """zlib of msgpack: a list of `RecordedRequest`."""

    class Meta:
        indexes = [
            models.Index(fields=("pool", "start"), name="recorded_pool"),
            models.Index(fields=("tenant", "start"), name="recorded_tenant"),
        ]


class SourceProgress(models.Model):
    """Last shipment applied of each source and boot: a shipment delivered twice counts once."""

    source = models.CharField(max_length=100)
    boot = models.CharField(max_length=64)
    last_seq = models.BigIntegerField()
    last_at = models.DateTimeField()
    """Time of the newest second applied, by the sender's clock."""
    applied_at = models.DateTimeField()
    router_state = models.JSONField(null=True)
    """The last RouterState, for routers."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=("source", "boot"), name="source_boot_unique")]
