"""The fleet's epoch goes on from the last published one."""

from django.db import migrations
from django.db.models import Max


def begin_from_published(apps, schema_editor):
    published = apps.get_model("snapshots", "PublishedSnapshot").objects.aggregate(epoch=Max("epoch"))["epoch"]
    if published:
        apps.get_model("revocations", "FleetEpoch").objects.get_or_create(id=1, defaults={"value": published})


class Migration(migrations.Migration):
    dependencies = [
        ("revocations", "0001_initial"),
        ("snapshots", "0003_router_digest"),
    ]

    operations = [migrations.RunPython(begin_from_published, migrations.RunPython.noop)]
