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


class RequestRollup(models.Model):
    """Sums of `router.contract.telemetry.RequestRow`, same field names and meanings."""

    width_s = models.PositiveIntegerField(choices=Width)
    start = models.DateTimeField()
    tenant = models.CharField(max_length=48, blank=True)
    namespace = models.CharField(max_length=100, blank=True)
    pool = models.CharField(max_length=48, blank=True)
    worker = models.CharField(max_length=100, blank=True)
    model = models.CharField(max_length=200, blank=True)
    template = models.CharField(max_length=64, blank=True)

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
        constraints = [
            models.UniqueConstraint(
                fields=("width_s", "start", "tenant", "namespace", "pool", "worker", "model", "template"),
                name="request_rollup_unique",
            ),
        ]


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

    gpu_samples = models.PositiveIntegerField(default=0)
    gpu_util_sum = models.FloatField(default=0)
    gpu_memory_used_max_mib = models.FloatField(default=0)
    gpu_power_sum_w = models.FloatField(default=0)
    xid_errors = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "worker"), name="worker_rollup_unique"),
        ]


class PrefixHeatRollup(models.Model):
    """Requests of a hot prefix by worker. `prefix` is a keyed id."""

    width_s = models.PositiveIntegerField(choices=Width)
    start = models.DateTimeField()
    namespace = models.CharField(max_length=100)
    pool = models.CharField(max_length=48)
    prefix = models.CharField(max_length=32)
    tokens = models.PositiveBigIntegerField(default=0)
    requests = models.PositiveBigIntegerField(default=0)
    by_worker = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("width_s", "start", "pool", "namespace", "prefix"), name="heat_unique"),
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
    detail = models.JSONField()


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
