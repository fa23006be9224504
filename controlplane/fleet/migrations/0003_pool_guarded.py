from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_pool_tokenizer_and_connector")]

    operations = [
        migrations.AddField(model_name="workerpool", name="guarded", field=models.BooleanField(default=False)),
    ]
