from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0005_finding_acknowledged")]

    operations = [
        migrations.AddField(
            model_name="workerpool",
            name="transfer",
            field=models.CharField(
                blank=True, choices=[("nixl", "NIXL: workers pull KV from each other")], max_length=10
            ),
        ),
    ]
