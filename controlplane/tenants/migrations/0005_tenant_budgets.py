"""Fair share (S11): what a tenant may prefill a second, and save up."""

import django.core.validators
from django.db import migrations, models
from django.db.models import Q

BOUNDS = [
    django.core.validators.MinValueValidator(1),
    django.core.validators.MaxValueValidator(1_000_000_000),
]


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_user_without_role")]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="prefill_tokens_per_s",
            field=models.FloatField(blank=True, null=True, validators=BOUNDS),
        ),
        migrations.AddField(
            model_name="tenant",
            name="prefill_burst_tokens",
            field=models.PositiveIntegerField(blank=True, null=True, validators=BOUNDS),
        ),
        migrations.AddConstraint(
            model_name="tenant",
            constraint=models.CheckConstraint(
                condition=Q(("prefill_tokens_per_s__isnull", True), ("prefill_tokens_per_s__gt", 0), _connector="OR"),
                name="tenant_budget_positive",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenant",
            constraint=models.CheckConstraint(
                condition=Q(
                    ("prefill_burst_tokens__isnull", True), ("prefill_tokens_per_s__isnull", False), _connector="OR"
                ),
                name="tenant_burst_needs_a_rate",
            ),
        ),
    ]
