import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import controlplane.namespaces.models


class Migration(migrations.Migration):
    dependencies = [
        ("namespaces", "0004_key_scopes"),
        ("tenants", "0006_personal_token"),
    ]

    operations = [
        migrations.CreateModel(
            name="TrustGroup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "slug",
                    models.CharField(
                        max_length=48,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?$",
                                "Use 1–48 lower-case letters, digits and inner hyphens.",
                            )
                        ],
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=200)),
                (
                    "nonce",
                    models.CharField(default=controlplane.namespaces.models.new_nonce, editable=False, max_length=32),
                ),
                ("generation", models.PositiveIntegerField(default=1)),
                ("generation_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("dissolved_at", models.DateTimeField(blank=True, null=True)),
                ("revision", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "ordering": ("slug",),
            },
        ),
        migrations.AddField(
            model_name="cachenamespace",
            name="isolation",
            field=models.CharField(
                choices=[
                    ("private", "Private"),
                    ("project", "Shared in a project of the tenant"),
                    ("trust_group", "Shared in a trust group"),
                    ("shared_public", "Private, but for public templates' static text"),
                ],
                default="private",
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="cachenamespace",
            name="project",
            field=models.CharField(
                blank=True,
                max_length=48,
                validators=[
                    django.core.validators.RegexValidator(
                        "^[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?$",
                        "Use 1–48 lower-case letters, digits and inner hyphens.",
                    )
                ],
            ),
        ),
        migrations.AddField(
            model_name="cachenamespace",
            name="trust_group",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="namespaces",
                to="namespaces.trustgroup",
            ),
        ),
        migrations.AddConstraint(
            model_name="cachenamespace",
            constraint=models.CheckConstraint(
                condition=models.Q(("isolation", "project"), ("project", ""), _connector="XOR"),
                name="namespace_project_if_shared",
            ),
        ),
        migrations.AddConstraint(
            model_name="cachenamespace",
            constraint=models.CheckConstraint(
                condition=models.Q(("isolation", "trust_group"), ("trust_group__isnull", True), _connector="XOR"),
                name="namespace_group_if_shared",
            ),
        ),
    ]
