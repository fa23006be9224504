from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("prompts", "0004_lints_and_goldens")]

    operations = [
        migrations.AddField(
            model_name="prompttemplateversion", name="is_public", field=models.BooleanField(default=False)
        ),
    ]
