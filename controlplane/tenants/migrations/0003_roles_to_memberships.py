"""Each user's role becomes a membership in the whole fleet."""

from django.db import migrations


def copy_roles(apps, schema_editor):
    membership, user = apps.get_model("tenants", "Membership"), apps.get_model("tenants", "User")
    users = user.objects.values_list("id", "role")
    membership.objects.bulk_create([membership(user_id=user_id, role=role) for user_id, role in users])


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_membership")]

    operations = [migrations.RunPython(copy_roles, migrations.RunPython.noop)]
