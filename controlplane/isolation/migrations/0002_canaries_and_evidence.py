import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0003_pool_guarded"),
        ("isolation", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="isolationviolation",
            name="evidence",
            field=models.CharField(blank=True, max_length=32),
        ),
        migrations.AddField(
            model_name="isolationviolation",
            name="severity",
            field=models.CharField(
                choices=[("warning", "Warning"), ("critical", "Critical")], default="critical", max_length=10
            ),
        ),
        migrations.CreateModel(
            name="CanaryResult",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("endpoint", models.CharField(max_length=20)),
                ("model", models.CharField(max_length=200)),
                ("checked_at", models.DateTimeField()),
                (
                    "verdict",
                    models.CharField(
                        choices=[
                            ("green", "Isolated"),
                            ("red", "Leaks"),
                            ("inconclusive", "Inconclusive"),
                            ("not_offered", "Not offered"),
                        ],
                        max_length=12,
                    ),
                ),
                ("reason", models.CharField(max_length=300)),
                ("prompt_tokens", models.PositiveBigIntegerField(null=True)),
                ("prime_cached", models.PositiveBigIntegerField(null=True)),
                ("foreign_cached", models.PositiveBigIntegerField(null=True)),
                ("own_cached", models.PositiveBigIntegerField(null=True)),
                ("unsalted_cached", models.PositiveBigIntegerField(null=True)),
                ("duration_ms", models.FloatField()),
                ("newest", models.BooleanField(default=True)),
                (
                    "worker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="canaries", to="fleet.worker"
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["checked_at"], name="canary_checked_at")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("newest", True)), fields=("worker", "endpoint"), name="canary_newest_once"
                    )
                ],
            },
        ),
    ]
