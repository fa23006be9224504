"""Schedules of capacity reviews, each run with its frozen figures and files, and how it reached its readers."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from controlplane.tenants.models import slug_validator


class Scope(models.TextChoices):
    FLEET = "fleet", "Whole fleet"
    POOL = "pool", "One pool"
    TENANT = "tenant", "One tenant"


class Format(models.TextChoices):
    HTML = "html", "HTML"
    PDF = "pdf", "PDF"
    CSV = "csv", "CSV (zip)"
    JSON = "json", "JSON"


def all_formats() -> list[str]:
    return [str(item) for item in Format.values]


class ReportSchedule(models.Model):
    """What is reported about whom, when, to whom. Evaluated by beat's tick: each due time once (A20)."""

    slug = models.CharField(max_length=48, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=200)
    cron = models.CharField(max_length=100)
    """Five fields, in `time_zone`; see `cron.py`."""
    time_zone = models.CharField(max_length=50, default="UTC")
    scope = models.CharField(max_length=10, choices=Scope, default=Scope.FLEET)
    subject = models.CharField(max_length=48, blank=True)
    """Slug of the pool or tenant; "" = the fleet. Text: history outlives what it speaks of."""
    range_days = models.PositiveSmallIntegerField(default=30, validators=[MinValueValidator(1), MaxValueValidator(365)])
    """Days before the due time that a report covers."""
    formats = models.JSONField(default=all_formats)
    recipients = models.JSONField(default=list, blank=True)
    """[{"kind": "email", "to": "<address>"} | {"kind": "webhook", "to": "<slug of a webhook>"}]; [] = nobody."""
    gpu_hour_cost = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0), MaxValueValidator(100_000)]
    )
    """Price of one worker's hour, in `currency`; null = money is not shown."""
    currency = models.CharField(max_length=3, default="EUR")
    enabled = models.BooleanField(default=True)
    next_due_at = models.DateTimeField(null=True, blank=True)
    """Null = disabled, or the expression never matches again."""
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("slug",)
        constraints = [
            models.CheckConstraint(condition=Q(scope="fleet") ^ ~Q(subject=""), name="report_schedule_subject_fits"),
        ]
        indexes = [models.Index(fields=("next_due_at",), condition=Q(enabled=True), name="report_schedule_due")]

    def __str__(self) -> str:
        return self.slug

    @property
    def tenant(self) -> str:
        """Whose it is to see; "" = the fleet's."""
        return self.subject if self.scope == Scope.TENANT else ""


class ReportRun(models.Model):
    """One report: from its due time, or the moment somebody asked, to its files."""

    class State(models.TextChoices):
        QUEUED = "queued", "Waits"
        RUNNING = "running", "Is being made"
        DONE = "done", "Done"
        FAILED = "failed", "Given up"

    schedule = models.ForeignKey(ReportSchedule, on_delete=models.CASCADE, related_name="runs")
    due_at = models.DateTimeField(null=True)
    """Null = asked for by hand."""
    missed = models.JSONField(default=list)
    """ISO times of earlier due times for which no report was made: nothing ran then."""
    asked_by = models.CharField(max_length=200, blank=True)
    settings = models.JSONField(default=dict)
    """The schedule as it was: name, scope, subject, time_zone, range_days, formats, recipients, rates."""
    tenant = models.CharField(max_length=48, blank=True)
    from_at = models.DateTimeField()
    to_at = models.DateTimeField()
    state = models.CharField(max_length=8, choices=State, default=State.QUEUED)
    step = models.CharField(max_length=40, blank=True)
    """What is being made; one of `producing.STEPS`."""
    step_number = models.PositiveSmallIntegerField(default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    """When it may be begun, or, while it runs, when its process counts as dead."""
    error = models.CharField(max_length=300, blank=True)
    figures = models.JSONField(null=True)
    """Frozen when it is done; see `figures.review`."""
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("schedule", "due_at"), condition=Q(due_at__isnull=False), name="report_run_once"
            ),
            models.CheckConstraint(condition=Q(from_at__lt=models.F("to_at")), name="report_run_has_a_span"),
        ]
        indexes = [
            models.Index(
                fields=("next_attempt_at",), condition=Q(state__in=("queued", "running")), name="report_run_open"
            ),
            models.Index(fields=("created_at",), name="report_run_age"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id}#{self.pk}"


class ReportFile(models.Model):
    """One rendering of a run. In the database, so that every web server has it."""

    run = models.ForeignKey(ReportRun, on_delete=models.CASCADE, related_name="files")
    format = models.CharField(max_length=4, choices=Format)
    content = models.BinaryField(null=True)
    """Null = it could not be made; `error` says why."""
    bytes = models.PositiveIntegerField(default=0)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ("id",)
        constraints = [models.UniqueConstraint(fields=("run", "format"), name="report_file_once")]

    def __str__(self) -> str:
        return f"{self.run_id}.{self.format}"


class ReportDelivery(models.Model):
    """One run for one e-mail address: attempted until the mail server takes it, or given up and kept.

    Webhooks have deliveries of their own (`webhooks.Delivery`).
    """

    class State(models.TextChoices):
        PENDING = "pending", "Waits for its next attempt"
        DELIVERED = "delivered", "Delivered"
        DEAD = "dead", "Given up"

    run = models.ForeignKey(ReportRun, on_delete=models.CASCADE, related_name="deliveries")
    to = models.CharField(max_length=254)
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "report deliveries"
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(fields=("run", "to"), name="report_delivery_once"),
            models.CheckConstraint(
                condition=Q(state="pending") ^ Q(next_attempt_at=None), name="report_delivery_pending_has_a_next"
            ),
        ]
        indexes = [models.Index(fields=("next_attempt_at",), condition=Q(state="pending"), name="report_delivery_due")]

    def __str__(self) -> str:
        return f"{self.run_id} to {self.to}"


class ReportShare(models.Model):
    """A link that shows one run to whoever has it, until it ends or is revoked. The link itself is not kept."""

    run = models.ForeignKey(ReportRun, on_delete=models.CASCADE, related_name="shares")
    nonce = models.CharField(max_length=32, unique=True, editable=False)
    """What the link's signature covers, with the expiry."""
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    opened = models.PositiveIntegerField(default=0)
    last_opened_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"share {self.pk} of {self.run_id}"

    def is_open(self, now: object) -> bool:
        return self.revoked_at is None and self.expires_at > now  # type: ignore[operator]
