"""The fleet: pools, workers, what a worker last said, and findings about it."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from controlplane.tenants.models import slug_validator

folder_validator = RegexValidator(
    r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$", "Name one folder: letters, digits, dots, hyphens, no slash."
)


class WorkerPool(models.Model):
    """Interchangeable workers: same models, same block size."""

    class Routing(models.TextChoices):
        TIDEMARK = "tidemark", "Tidemark (prefix, load and watermarks)"
        RING = "ring", "Consistent hashing only"
        LEAST_OUTSTANDING = "least_outstanding", "Least outstanding requests"
        ROUND_ROBIN = "round_robin", "Round robin"

    class Transfer(models.TextChoices):
        NIXL = "nixl", "NIXL: workers pull KV from each other"

    slug = models.CharField(max_length=48, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=200, blank=True)
    block_size = models.PositiveIntegerField(default=16, validators=[MinValueValidator(1), MaxValueValidator(4096)])
    routing = models.CharField(max_length=20, choices=Routing, default=Routing.TIDEMARK)
    virtual_nodes = models.PositiveIntegerField(default=100, validators=[MinValueValidator(1), MaxValueValidator(1000)])
    spill_outstanding = models.PositiveIntegerField(
        default=16, validators=[MinValueValidator(1), MaxValueValidator(10_000)]
    )
    prefill_tokens_per_s = models.FloatField(null=True, blank=True, validators=[MinValueValidator(1)])
    """Starting estimate; routers learn the real rate."""
    tokenizer = models.CharField(max_length=100, blank=True, validators=[folder_validator])
    """Folder below each router's TIDEMARK_ROUTER_TOKENIZER_DIR; empty = prefixes are matched by text."""
    kv_bytes_per_token = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    """Null = the pool has no KV connector."""
    transfer_gib_per_s = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0.001)])
    """Effective bandwidth of a pull from the shared tier; null = nothing is pulled."""
    transfer_setup_ms = models.FloatField(default=0, validators=[MinValueValidator(0), MaxValueValidator(60_000)])
    transfer = models.CharField(max_length=10, choices=Transfer, blank=True)
    """How its workers pull KV from each other; empty = they do not."""
    guarded = models.BooleanField(default=False)
    """Its workers run the worker guard (S26): routers prove each request."""
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug

    def clean(self) -> None:
        if self.transfer and (self.kv_bytes_per_token is None or self.transfer_gib_per_s is None):
            message = "Set kv_bytes_per_token and transfer_gib_per_s too: without them no pull can be weighed."
            raise ValidationError({"transfer": message})


class PoolModel(models.Model):
    """A model name served by a pool. Unique in the fleet: a request's model determines its pool."""

    pool = models.ForeignKey(WorkerPool, on_delete=models.CASCADE, related_name="models")
    name = models.CharField(max_length=200, unique=True)
    generation = models.PositiveIntegerField(default=1)
    """Raised when the model's revision is revoked: what was cached under the one before cannot be reached."""
    generation_nonce = models.CharField(max_length=32, blank=True, editable=False)
    """Goes into salts and index keys; empty in the first generation."""
    generation_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Worker(models.Model):
    class State(models.TextChoices):
        READY = "ready", "Ready"
        DRAIN = "drain", "Draining: finishes what it has, takes nothing new"
        MAINTENANCE = "maintenance", "Maintenance: takes nothing"

    pool = models.ForeignKey(WorkerPool, on_delete=models.PROTECT, related_name="workers")
    slug = models.CharField(max_length=48, validators=[slug_validator])
    url = models.CharField(max_length=300, unique=True)
    """`http://host:port`, checked against TIDEMARK_WORKER_NETWORKS (S17)."""
    state = models.CharField(max_length=12, choices=State, default=State.READY)
    kv_events_endpoint = models.CharField(max_length=300, blank=True)
    """`tcp://host:port` of the worker's ZMQ publisher; empty = no events."""
    kv_replay_endpoint = models.CharField(max_length=300, blank=True)
    dcgm_url = models.CharField(max_length=300, blank=True)
    """Metrics page of the node's DCGM exporter; empty = no GPU figures."""
    facts = models.JSONField(default=dict, blank=True)
    """What the worker said of itself: block_size, kv_blocks, hash_algorithm, prefix_caching, usage_details,
    version, models, events. A missing key is unknown."""
    test_report = models.JSONField(null=True, blank=True)
    """Result of the last live test: [{check, ok: true|false|null, message}]."""
    tested_at = models.DateTimeField(null=True, blank=True)
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("pool__slug", "slug")
        constraints = [models.UniqueConstraint(fields=("pool", "slug"), name="worker_unique_in_pool")]

    def __str__(self) -> str:
        return self.worker_id

    @property
    def worker_id(self) -> str:
        """`<pool>/<slug>`, as in snapshots, metrics and URLs. Reads the pool: select it along."""
        return f"{self.pool.slug}/{self.slug}"


class WorkerStatus(models.Model):
    """The last poll of a worker and the raw counters it is compared with. One row a worker, overwritten."""

    worker = models.OneToOneField(Worker, on_delete=models.CASCADE, related_name="status")
    polled_at = models.DateTimeField(null=True)
    """Last attempt."""
    ok_at = models.DateTimeField(null=True)
    """Last success: the age of every figure of `reading`."""
    error = models.CharField(max_length=300, blank=True)
    consecutive_failures = models.PositiveIntegerField(default=0)
    reading = models.JSONField(default=dict)
    """Last good gauges: running, waiting, waiting_by_reason, kv_use, gpu …; a missing key is unknown."""
    counters = models.JSONField(default=dict)
    """Raw cumulative counters of the last good poll, with the process start time that they belong to."""
    scrape_ms = models.FloatField(null=True)
    kv_at = models.DateTimeField(null=True)
    kv = models.JSONField(default=dict)
    """Last word of the KV-event subscriber: resident_blocks, capacity_blocks, state, gaps …"""


class Finding(models.Model):
    """Something an operator should know about a worker or pool. Open until `resolved_at`."""

    class Severity(models.TextChoices):
        INFO = "info", "Info"
        WARNING = "warning", "Warning"
        CRITICAL = "critical", "Critical"

    kind = models.CharField(max_length=60)
    """`counter_reset`, `metrics_missing`, `metrics_garbage`, `poll_failed`, `kv_event_gap`, `kv_events_silent`,
    `caching_off`, `block_size_mismatch`, `worker_restarted`, `xid_error` …"""
    subject = models.CharField(max_length=200)
    """Worker or pool id."""
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.WARNING)
    message = models.CharField(max_length=500)
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    resolved_at = models.DateTimeField(null=True, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)
    acknowledgement = models.CharField(max_length=500, blank=True)
    """Why it may wait, or what was done. It stays open: only what it tells of resolves it."""

    class Meta:
        ordering = ("-last_seen",)
        constraints = [
            models.UniqueConstraint(
                fields=("kind", "subject"), condition=models.Q(resolved_at__isnull=True), name="finding_open_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"
