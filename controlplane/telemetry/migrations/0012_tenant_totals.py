from datetime import timedelta

from django.db import migrations, models
from django.db.models import Max, Min, Sum

HOUR_S, DAY_S = 3600, 86_400
SUMS = ("requests", "prompt_tokens", "hit_tokens", "hit_prompt_tokens", "slo_met", "slo_known")


def sum_up(apps, schema_editor) -> None:
    """Totals of the rows that are there: one day at a time, in order."""
    rollups, totals = (apps.get_model("telemetry", name) for name in ("RequestRollup", "TenantTotal"))
    hours = rollups.objects.filter(width_s=HOUR_S).exclude(tenant="")
    ends = hours.aggregate(first=Min("start"), last=Max("start"))
    if ends["first"] is None:
        return
    day = ends["first"].replace(hour=0, minute=0, second=0, microsecond=0)
    while day <= ends["last"]:
        of_day = hours.filter(start__gte=day, start__lt=day + timedelta(days=1)).order_by().values_list("tenant")
        found = of_day.annotate(*(Sum(name) for name in SUMS))
        totals.objects.bulk_create(
            [
                totals(width_s=DAY_S, start=day, tenant=tenant, **dict(zip(SUMS, sums, strict=True)))
                for tenant, *sums in found
            ],
            batch_size=400,
        )
        day += timedelta(days=1)


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0011_worker_rollup_worker"),
    ]

    operations = [
        migrations.CreateModel(
            name="TenantTotal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("width_s", models.PositiveIntegerField()),
                ("start", models.DateTimeField()),
                ("tenant", models.CharField(max_length=48)),
                ("requests", models.PositiveBigIntegerField(default=0)),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("hit_tokens", models.PositiveBigIntegerField(default=0)),
                ("hit_prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("slo_met", models.PositiveBigIntegerField(default=0)),
                ("slo_known", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("width_s", "start", "tenant"), name="tenant_total_unique")
                ],
            },
        ),
        migrations.RunPython(sum_up, migrations.RunPython.noop),
    ]
