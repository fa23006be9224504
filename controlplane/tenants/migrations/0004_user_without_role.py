"""The role is told by memberships alone."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_roles_to_memberships")]

    operations = [
        migrations.RemoveField(model_name="user", name="role"),
        migrations.AlterModelManagers(name="user", managers=[]),
    ]
