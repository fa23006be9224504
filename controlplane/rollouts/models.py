"""What routers with and without a roll-out's candidate saw, summed by stage. The roll-out itself is in `policies`."""

from __future__ import annotations

from django.db import models

from controlplane.policies.models import Rollout


class RolloutSample(models.Model):
    """Sums of finished requests of one router in one arm of one stage."""

    class Arm(models.TextChoices):
        CANDIDATE = "candidate", "With the candidate's values"
        OTHERS = "others", "Without"

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="samples")
    stage = models.PositiveIntegerField()
    arm = models.CharField(max_length=10, choices=Arm)
    router = models.CharField(max_length=128)
    requests = models.PositiveBigIntegerField(default=0)
    errors = models.PositiveBigIntegerField(default=0)
    """Failures that are the service's, not the client's."""
    hit_tokens = models.PositiveBigIntegerField(default=0)
    hit_prompt_tokens = models.PositiveBigIntegerField(default=0)
    ttft = models.JSONField(default=dict)
    """Buckets of all requests with a first token; `router.contract.histogram`."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("rollout", "stage", "arm", "router"), name="rollout_sample_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.rollout_id} stage {self.stage} {self.arm} {self.router}"
