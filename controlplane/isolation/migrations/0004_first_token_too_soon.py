from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("isolation", "0003_ttft_audit"),
    ]

    operations = [
        migrations.AddField(
            model_name="isolationviolation",
            name="expected_ms",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="isolationviolation",
            name="kind",
            field=models.CharField(
                choices=[("bound", "More cached tokens than possible"), ("ttft", "First token too soon")],
                default="bound",
                max_length=10,
            ),
        ),
        migrations.AddField(
            model_name="isolationviolation",
            name="ttft_ms",
            field=models.FloatField(blank=True, null=True),
        ),
    ]
