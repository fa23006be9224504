from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0010_recorded_chunks"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="workerrollup",
            index=models.Index(fields=["width_s", "worker", "start"], name="worker_rollup_worker"),
        ),
    ]
