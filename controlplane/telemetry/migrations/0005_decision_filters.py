"""What lists of decisions are filtered by, out of their detail."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

BATCH = 500


def fill(apps: Any, schema_editor: Any) -> None:
    """At most the 50,000 decisions that are kept."""
    records = apps.get_model("telemetry", "DecisionRecord").objects.all()
    waiting = []
    for record in records.only("pk", "detail").iterator(chunk_size=BATCH):
        detail = record.detail
        record.model = str(detail.get("model", ""))[:200]
        record.predicted_hit_tokens = detail.get("predicted_hit_tokens", 0)
        record.cached_tokens = detail.get("cached_tokens")
        waiting.append(record)
        if len(waiting) == BATCH:
            records.bulk_update(waiting, FIELDS)
            waiting = []
    records.bulk_update(waiting, FIELDS)


FIELDS = ("model", "predicted_hit_tokens", "cached_tokens")


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0004_request_totals"),
    ]

    operations = [
        migrations.AddField(
            "decisionrecord", "model", models.CharField(blank=True, default="", max_length=200), preserve_default=False
        ),
        migrations.AddField("decisionrecord", "predicted_hit_tokens", models.PositiveIntegerField(null=True)),
        migrations.AddField("decisionrecord", "cached_tokens", models.PositiveIntegerField(null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
