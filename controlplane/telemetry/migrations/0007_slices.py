from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0006_prefix_heat_and_evictions"),
    ]

    operations = [
        migrations.CreateModel(
            name="SliceRollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("width_s", models.PositiveIntegerField()),
                ("start", models.DateTimeField()),
                (
                    "slice",
                    models.CharField(
                        choices=[("router", "Router"), ("worker", "Worker"), ("namespace", "Namespace")], max_length=10
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("tenant", models.CharField(blank=True, max_length=48)),
                ("template", models.CharField(blank=True, max_length=64)),
                ("pool", models.CharField(blank=True, max_length=48)),
                ("model", models.CharField(blank=True, max_length=200)),
                ("requests", models.PositiveBigIntegerField(default=0)),
                ("unknown_prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("repeated_tokens", models.PositiveBigIntegerField(default=0)),
                ("best_hit_tokens", models.PositiveBigIntegerField(default=0)),
                ("expected_hit_tokens", models.PositiveBigIntegerField(default=0)),
                ("hit_tokens", models.PositiveBigIntegerField(default=0)),
                ("unjudged_tokens", models.PositiveBigIntegerField(default=0)),
                ("saved_prefill_ms", models.FloatField(default=0)),
                ("routing_loss", models.JSONField(default=dict)),
                ("hit_size", models.JSONField(default=dict)),
                ("cohorts", models.JSONField(default=dict)),
            ],
            options={
                "indexes": [models.Index(fields=["slice", "tenant", "width_s", "start"], name="slice_rollup_tenant")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("slice", "width_s", "start", "name", "tenant", "template", "pool", "model"),
                        name="slice_rollup_unique",
                    )
                ],
            },
        ),
    ]
