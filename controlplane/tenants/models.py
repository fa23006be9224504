"""Who uses the fleet (tenants) and who operates it (users)."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser, UserManager
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models, transaction
from django.db.models.functions import Concat

from controlplane.tenants import roles

slug_validator = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?$",
    "Use 1–48 lower-case letters, digits and inner hyphens.",
)

PREFILL_TOKENS_MAX = 1_000_000_000
"""Far above what any fleet prefills in a second; below PostgreSQL's integer."""

TEXT: models.Field[str, str] = models.TextField()


class Status(models.TextChoices):
    ACTIVE = "active", "Active"
    SUSPENDED = "suspended", "Suspended"
    REVOKED = "revoked", "Revoked"


class OperatorManager(UserManager["User"]):
    use_in_migrations = False

    def create_user(self, username: str, *args: Any, role: str = "", **kwargs: Any) -> User:
        """A user; `role` names the role of a membership in the whole fleet, "" makes none: the user may nothing."""
        with transaction.atomic():
            user = super().create_user(username, *args, **kwargs)
            if role:
                Membership.objects.create(user=user, role=role)
        return user

    def with_memberships(self) -> models.QuerySet[User]:
        """Users with the text that `User.access` reads instead of a query of its own."""
        pair = Concat("memberships__role", models.Value("@"), "memberships__tenant__slug", output_field=TEXT)
        return self.annotate(memberships_text=models.StringAgg(pair, models.Value(","), output_field=TEXT))


class User(AbstractUser):
    """An operator. Memberships decide what may be seen and changed; a superuser may everything."""

    class Role(models.TextChoices):
        VIEWER = roles.Role.VIEWER.value, "Viewer"
        OPERATOR = roles.Role.OPERATOR.value, "Operator"
        TENANT_ADMIN = roles.Role.TENANT_ADMIN.value, "Tenant administrator"
        SECURITY = roles.Role.SECURITY.value, "Security"
        ADMIN = roles.Role.ADMIN.value, "Administrator"

    time_zone = models.CharField(max_length=50, blank=True)
    """IANA name for displayed times; empty = the browser's."""

    objects: ClassVar[OperatorManager] = OperatorManager()

    @cached_property
    def access(self) -> roles.Access:
        """What this user holds, read once for each instance: no query where `with_memberships` loaded it."""
        if not self.is_active:
            return roles.NO_ACCESS
        if self.is_superuser:
            return roles.FULL_ACCESS
        return roles.access_from(self.roles_held)

    @cached_property
    def roles_held(self) -> list[tuple[str, str]]:
        """(role, tenant slug or "" for the whole fleet) of each membership."""
        if "memberships_text" in self.__dict__:
            pairs = (pair.partition("@") for pair in (self.__dict__["memberships_text"] or "").split(","))
            return [(role, slug) for role, _, slug in pairs if role]
        rows = self.memberships.order_by().values_list("role", "tenant__slug")
        return [(role, slug or "") for role, slug in rows]

    @property
    def role_words(self) -> str:
        """Roles as pages show them: "Operator", "Viewer of acme"."""
        words = ["Superuser"] if self.is_superuser else []
        for role, slug in self.roles_held:
            words.append(self.Role(role).label + (f" of {slug}" if slug else ""))
        return ", ".join(words) or "No role"

    @property
    def may_view(self) -> bool:
        """Whether this user may see the dashboard's pages of the whole fleet."""
        return self.access.may(roles.Capability.FLEET_VIEW)

    @property
    def may_change(self) -> bool:
        """Whether this user may change the fleet: the dashboard's pages offer their levers then."""
        return self.access.may(roles.Capability.FLEET_CHANGE)


class Tenant(models.Model):
    slug = models.CharField(max_length=48, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=10, choices=Status, default=Status.ACTIVE)
    prefill_tokens_per_s = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(PREFILL_TOKENS_MAX)]
    )
    """Fair share (S11): uncached prompt tokens a second the tenant may cause on each router; null = no limit."""
    prefill_burst_tokens = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(PREFILL_TOKENS_MAX)]
    )
    """Uncached prompt tokens it may save up; null = ten seconds of its rate."""
    revision = models.PositiveIntegerField(default=1)
    """Raised by each change; the ETag of the REST API."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("slug",)
        constraints = [
            models.CheckConstraint(condition=models.Q(status__in=Status.values), name="tenant_status_known"),
            models.CheckConstraint(
                condition=models.Q(prefill_tokens_per_s__isnull=True) | models.Q(prefill_tokens_per_s__gt=0),
                name="tenant_budget_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(prefill_burst_tokens__isnull=True) | models.Q(prefill_tokens_per_s__isnull=False),
                name="tenant_burst_needs_a_rate",
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class Membership(models.Model):
    """A user's role in one tenant, or in the whole fleet."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True, blank=True, related_name="memberships")
    """Null = the whole fleet."""
    role = models.CharField(max_length=20, choices=User.Role)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)
        constraints = [
            models.CheckConstraint(condition=models.Q(role__in=User.Role.values), name="membership_role_known"),
            models.UniqueConstraint(
                fields=("user", "tenant"), condition=models.Q(tenant__isnull=False), name="membership_one_in_tenant"
            ),
            models.UniqueConstraint(
                fields=("user",), condition=models.Q(tenant__isnull=True), name="membership_one_in_fleet"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} {self.role} in {self.tenant or 'the whole fleet'}"


class PersonalToken(models.Model):
    """A token `tmp_<token_id>_<secret>` with which its owner calls the API; only a keyed hash of it is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="personal_tokens")
    token_id = models.CharField(max_length=12, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    name = models.CharField(max_length=200)
    scopes = models.JSONField(default=list)
    """Capabilities; the token has those of them that its owner holds when it is used."""
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"tmp_{self.token_id}_…"
