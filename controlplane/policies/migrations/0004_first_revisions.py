"""Every watermark in force begins its history: one revision with its number and values."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def write_first_revisions(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    revision = apps.get_model("policies", "PolicyRevision")
    for row in apps.get_model("policies", "WatermarkPolicy").objects.select_related("pool", "namespace__tenant"):
        tenant = row.namespace.tenant.slug if row.namespace else ""
        scope = f"pool:{row.pool.slug}" if row.pool else "global"
        revision.objects.create(
            kind="watermark",
            scope=f"namespace:{tenant}/{row.namespace.slug}" if row.namespace else scope,
            tenant=tenant,
            number=row.revision,
            values={"low": row.low, "high": row.high, "dwell_s": row.dwell_s},
            origin="set",
            author="system:migration",
            created_at=row.updated_at,
        )


class Migration(migrations.Migration):
    dependencies = [("policies", "0003_policy_revisions")]

    operations = [migrations.RunPython(write_first_revisions, migrations.RunPython.noop)]
