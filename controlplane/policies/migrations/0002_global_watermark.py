"""The global watermark exists from the start, with the default values."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def ensure_global(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("policies", "WatermarkPolicy").objects.get_or_create(scope="global")


class Migration(migrations.Migration):
    dependencies = [("policies", "0001_initial")]

    operations = [migrations.RunPython(ensure_global, migrations.RunPython.noop)]
