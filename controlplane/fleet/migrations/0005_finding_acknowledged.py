from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0004_model_generations")]

    operations = [
        migrations.AddField(
            model_name="finding", name="acknowledged_at", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="finding", name="acknowledged_by", field=models.CharField(blank=True, max_length=200)
        ),
        migrations.AddField(
            model_name="finding", name="acknowledgement", field=models.CharField(blank=True, max_length=500)
        ),
    ]
