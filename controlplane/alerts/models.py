"""Rules over figures and findings, the alerts that they raise, and who silenced them until when."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from controlplane.alerts.measures import CHOICES
from controlplane.tenants.models import slug_validator

HOLDS_S_MAX = 86_400
WINDOW_S_MIN, WINDOW_S_MAX = 60, 86_400


class Severity(models.TextChoices):
    INFO = "info", "Info"
    WARNING = "warning", "Warning"
    CRITICAL = "critical", "Critical"


class AlertRule(models.Model):
    """A condition on one measure that must hold for a while."""

    class Comparison(models.TextChoices):
        ABOVE = "above", "above"
        BELOW = "below", "below"

    class OnUnknown(models.TextChoices):
        SHOW = "show", "Show it as unknown"
        FIRE = "fire", "Fire as if the condition held"

    slug = models.CharField(max_length=48, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=120)
    measure = models.CharField(max_length=30, choices=CHOICES)
    comparison = models.CharField(max_length=5, choices=Comparison)
    threshold = models.FloatField()
    clear_at = models.FloatField(null=True, blank=True)
    """It stops only beyond this value (hysteresis); null = at the threshold."""
    window_s = models.PositiveIntegerField(
        default=300, validators=[MinValueValidator(WINDOW_S_MIN), MaxValueValidator(WINDOW_S_MAX)]
    )
    """Seconds of figures that one value sums over."""
    for_s = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(HOLDS_S_MAX)])
    """How long the condition must hold."""
    on_unknown = models.CharField(max_length=4, choices=OnUnknown, default=OnUnknown.SHOW)
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.WARNING)
    tenant = models.CharField(max_length=48, blank=True)
    pool = models.CharField(max_length=48, blank=True)
    runbook = models.TextField(max_length=4000, blank=True)
    """What to do, in plain text."""
    runbook_url = models.URLField(max_length=300, blank=True)
    enabled = models.BooleanField(default=True)
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug


class Alert(models.Model):
    """One stretch of time in which a rule's condition held, or could not be told, of one subject."""

    class State(models.TextChoices):
        PENDING = "pending", "Pending"
        FIRING = "firing", "Firing"
        SILENCED = "silenced", "Silenced"
        UNKNOWN = "unknown", "Unknown"
        RESOLVED = "resolved", "Resolved"

    rule = models.ForeignKey(AlertRule, on_delete=models.SET_NULL, null=True, blank=True, related_name="alerts")
    rule_slug = models.CharField(max_length=48)
    name = models.CharField(max_length=120)
    measure = models.CharField(max_length=30, choices=CHOICES)
    severity = models.CharField(max_length=10, choices=Severity)
    subject = models.CharField(max_length=200)
    """`fleet`, or the id of a tenant, pool, worker or router."""
    tenant = models.CharField(max_length=48, blank=True)
    pool = models.CharField(max_length=48, blank=True)
    state = models.CharField(max_length=10, choices=State)
    value = models.FloatField(null=True, blank=True)
    """The last one known; null = none was."""
    reason = models.CharField(max_length=300, blank=True)
    """Why the value is unknown, or why it ended without becoming good."""
    since = models.DateTimeField()
    """When the condition began to hold, or to be unknown."""
    fired_at = models.DateTimeField(null=True, blank=True)
    unknown_since = models.DateTimeField(null=True, blank=True)
    """While it fires and the figures are missing."""
    resolved_at = models.DateTimeField(null=True, blank=True)
    told = models.BooleanField(default=False)
    """Whether receivers were told that it fires: only then are they told of its end."""
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)
    acknowledgement = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("rule", "subject"), condition=Q(resolved_at__isnull=True), name="alert_open_once"
            ),
            models.CheckConstraint(
                condition=Q(state="resolved") ^ Q(resolved_at=None), name="alert_resolved_has_its_time"
            ),
        ]
        indexes = [
            models.Index(fields=("state", "severity"), condition=Q(resolved_at=None), name="alert_open"),
            models.Index(fields=("resolved_at",), name="alert_ended"),
        ]

    def __str__(self) -> str:
        return f"{self.rule_slug} {self.subject}"


class AlertTransition(models.Model):
    """What became of an alert when. Receivers are told of those that are `told`."""

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="transitions")
    at = models.DateTimeField()
    to_state = models.CharField(max_length=10, choices=Alert.State)
    value = models.FloatField(null=True, blank=True)
    reason = models.CharField(max_length=300, blank=True)
    told = models.BooleanField(default=False)

    class Meta:
        ordering = ("id",)
        indexes = [models.Index(fields=("at",), name="alert_transition_age")]

    def __str__(self) -> str:
        return f"{self.alert_id} {self.to_state}"


class Silence(models.Model):
    """Alerts that fit every matcher are not told until then. An empty matcher fits all."""

    rule_slug = models.CharField(max_length=48, blank=True)
    subject = models.CharField(max_length=200, blank=True)
    """A name, or a pattern with `*`."""
    tenant = models.CharField(max_length=48, blank=True)
    pool = models.CharField(max_length=48, blank=True)
    severity = models.CharField(max_length=10, choices=Severity, blank=True)
    reason = models.CharField(max_length=500)
    created_by = models.CharField(max_length=200)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    """When somebody ended it early."""
    ended_by = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=models.F("starts_at")), name="silence_has_length")
        ]
        indexes = [models.Index(fields=("ends_at",), name="silence_end")]

    def __str__(self) -> str:
        return f"{self.rule_slug or 'all'} until {self.ends_at:%Y-%m-%d %H:%M}"


class EvaluationClock(models.Model):
    """One row: the last moment at which every rule was evaluated. Who moves it on has that moment alone."""

    ONLY_ID = 1

    slot = models.BigIntegerField(default=0)
    """Number of the tick since the epoch."""
    at = models.DateTimeField(null=True, blank=True)
    seconds = models.FloatField(null=True, blank=True)
    """How long the evaluation took."""

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="alerts_one_clock")]

    def __str__(self) -> str:
        return f"evaluated at {self.at}"


class RuleStatus(models.Model):
    """What the last evaluation of a rule said."""

    rule = models.OneToOneField(AlertRule, on_delete=models.CASCADE, related_name="status")
    at = models.DateTimeField()
    state = models.CharField(max_length=10)
    """`ok`, `pending`, `firing`, `silenced` or `unknown`: the gravest of its subjects; `idle` = there are none."""
    value = models.FloatField(null=True, blank=True)
    """The worst that is known."""
    subjects = models.PositiveIntegerField(default=0)
    """How many were looked at."""
    unknown = models.PositiveIntegerField(default=0)
    """How many of them are unknown."""
    reason = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return f"{self.rule_id} {self.state}"
