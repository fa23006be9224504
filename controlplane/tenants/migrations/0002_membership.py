"""Roles become memberships: in the whole fleet what was the user's role, and in single tenants."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

ROLES = [
    ("viewer", "Viewer"),
    ("operator", "Operator"),
    ("tenant_admin", "Tenant administrator"),
    ("security", "Security"),
    ("admin", "Administrator"),
]


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("role", models.CharField(choices=ROLES, max_length=20)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="memberships",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("role__in", [value for value, _ in ROLES])), name="membership_role_known"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("tenant__isnull", False)),
                        fields=("user", "tenant"),
                        name="membership_one_in_tenant",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("tenant__isnull", True)), fields=("user",), name="membership_one_in_fleet"
                    ),
                ],
            },
        ),
    ]
