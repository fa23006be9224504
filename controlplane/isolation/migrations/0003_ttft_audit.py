import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0005_finding_acknowledged"),
        ("isolation", "0002_canaries_and_evidence"),
    ]

    operations = [
        migrations.CreateModel(
            name="TtftAudit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("model", models.CharField(max_length=200)),
                ("requested_by", models.CharField(max_length=200)),
                ("requested_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "verdict",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("green", "Isolated"),
                            ("red", "Leaks"),
                            ("inconclusive", "Inconclusive"),
                            ("not_offered", "Not offered"),
                        ],
                        max_length=12,
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=300)),
                ("samples", models.PositiveIntegerField(default=0)),
                ("auc", models.FloatField(null=True)),
                ("auc_low", models.FloatField(null=True)),
                ("auc_high", models.FloatField(null=True)),
                ("own_auc", models.FloatField(null=True)),
                ("own_auc_low", models.FloatField(null=True)),
                ("own_ms", models.FloatField(null=True)),
                ("foreign_ms", models.FloatField(null=True)),
                ("unknown_ms", models.FloatField(null=True)),
                (
                    "worker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="ttft_audits", to="fleet.worker"
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
    ]
