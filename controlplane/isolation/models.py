"""Evidence of broken isolation, and the checks that look for it."""

from __future__ import annotations

from django.db import models

from controlplane.fleet.models import Worker


class IsolationViolation(models.Model):
    """An answer with more cached tokens than its namespace's own history allows (S8), or one too soon (S1.6)."""

    class Kind(models.TextChoices):
        BOUND = "bound", "More cached tokens than possible"
        TTFT = "ttft", "First token too soon"

    class Severity(models.TextChoices):
        WARNING = "warning", "Warning"
        CRITICAL = "critical", "Critical"

    at = models.DateTimeField(db_index=True)
    request_id = models.CharField(max_length=64, unique=True)
    tenant = models.CharField(max_length=48)
    namespace = models.CharField(max_length=100)
    pool = models.CharField(max_length=48)
    worker = models.CharField(max_length=100)
    model = models.CharField(max_length=200)
    prompt_tokens = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    bound_tokens = models.PositiveBigIntegerField()
    """The most cached tokens that the namespace's own history on the worker allows."""
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.BOUND)
    ttft_ms = models.FloatField(null=True, blank=True)
    expected_ms = models.FloatField(null=True, blank=True)
    """Of kind `ttft`: when the first byte came, and how long the tokens that the answer calls uncached take."""
    severity = models.CharField(max_length=10, choices=Severity, default=Severity.CRITICAL)
    evidence = models.CharField(max_length=32, blank=True)
    """Keyed hash of the prefix that was hit, 32 hexadecimal digits: equal for equal prefixes, says nothing else."""
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)
    acknowledgement = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("-at",)

    def __str__(self) -> str:
        return f"{self.namespace} on {self.worker}: {self.cached_tokens} > {self.bound_tokens}"


class CanaryResult(models.Model):
    """One canary on one endpoint of one worker (S7). Counts are cached tokens; null = not told or not asked."""

    class Verdict(models.TextChoices):
        GREEN = "green", "Isolated"
        RED = "red", "Leaks"
        INCONCLUSIVE = "inconclusive", "Inconclusive"
        NOT_OFFERED = "not_offered", "Not offered"

    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="canaries")
    endpoint = models.CharField(max_length=20)
    """A name of `canary.ENDPOINTS`."""
    model = models.CharField(max_length=200)
    checked_at = models.DateTimeField()
    verdict = models.CharField(max_length=12, choices=Verdict)
    reason = models.CharField(max_length=300)
    prompt_tokens = models.PositiveBigIntegerField(null=True)
    prime_cached = models.PositiveBigIntegerField(null=True)
    foreign_cached = models.PositiveBigIntegerField(null=True)
    own_cached = models.PositiveBigIntegerField(null=True)
    unsalted_cached = models.PositiveBigIntegerField(null=True)
    duration_ms = models.FloatField()
    newest = models.BooleanField(default=True)
    """Whether it is the last of its worker and endpoint."""

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("worker", "endpoint"), condition=models.Q(newest=True), name="canary_newest_once"
            ),
        ]
        indexes = [models.Index(fields=("checked_at",), name="canary_checked_at")]

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.verdict}"


class TtftAudit(models.Model):
    """Whether prompts that another salt has cached come faster than unknown ones (S9)."""

    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="ttft_audits")
    model = models.CharField(max_length=200)
    requested_by = models.CharField(max_length=200)
    requested_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    """Null while it is under way, or its task was lost."""
    verdict = models.CharField(max_length=12, choices=CanaryResult.Verdict, blank=True)
    reason = models.CharField(max_length=300, blank=True)
    samples = models.PositiveIntegerField(default=0)
    """Of each arm."""
    auc = models.FloatField(null=True)
    """How surely a foreign prompt is faster than an unknown one: 0.5 = not at all."""
    auc_low = models.FloatField(null=True)
    auc_high = models.FloatField(null=True)
    own_auc = models.FloatField(null=True)
    """The same of own hits: the audit's power."""
    own_auc_low = models.FloatField(null=True)
    own_ms = models.FloatField(null=True)
    foreign_ms = models.FloatField(null=True)
    unknown_ms = models.FloatField(null=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"TTFT audit: {self.verdict or 'under way'}"
