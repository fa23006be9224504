"""Who has which role where, over REST. Nobody grants or takes away more than they hold themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.errors import Forbidden, NotFound
from controlplane.tenants import member_services
from controlplane.tenants.models import Membership, User
from controlplane.tenants.roles import Capability, Role

ROWS = Membership.objects.select_related("user", "tenant")
NEEDS = Needs(read=Capability.MEMBERS_VIEW, change=Capability.MEMBERS_CHANGE)


def _place(kwargs: Mapping[str, Any]) -> str | None:
    row = Membership.objects.filter(pk=kwargs["member_id"]).values_list("tenant__slug").first()
    return None if row is None else row[0] or ""


class MemberSerializer(serializers.Serializer[Membership]):
    id = serializers.IntegerField()
    user = serializers.CharField(source="user.username")
    tenant = serializers.SerializerMethodField()
    role = serializers.ChoiceField(choices=User.Role.choices)
    created_at = serializers.DateTimeField()

    def get_tenant(self, row: Membership) -> str | None:
        """Null = the whole fleet."""
        return row.tenant.slug if row.tenant else None


class MemberGrant(StrictSerializer):
    user = Text(max_length=150)
    role = serializers.ChoiceField(choices=User.Role.choices)
    tenant = Text(max_length=48, required=False, allow_null=True, default=None, help_text="Absent = the whole fleet.")


class MemberFilter(django_filters.FilterSet):
    user = django_filters.CharFilter(field_name="user__username")
    tenant = django_filters.CharFilter(field_name="tenant__slug")
    role = django_filters.ChoiceFilter(choices=User.Role.choices)


class MemberList(ApiView):
    needs = NEEDS
    rows_of = "tenant__slug"
    queryset = ROWS
    serializer_class = MemberSerializer
    filterset_class = MemberFilter

    @extend_schema(operation_id="members_list", responses=MemberSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())

    @extend_schema(operation_id="members_grant", request=MemberGrant, responses={201: MemberSerializer})
    def post(self, request: Request) -> Response:
        """Give a user a role in a tenant or in the whole fleet, in place of the one that they had there."""
        body = self.body(MemberGrant)
        tenant = body["tenant"] or ""
        self.require_in(tenant)
        _require_covered(self, body["role"], tenant)
        held = ROWS.filter(user__username=body["user"], tenant__slug=tenant or None).first()
        if held is not None:
            _require_covered(self, held.role, tenant)
        row = member_services.grant_role(
            actor=self.actor, username=body["user"], role=body["role"], tenant=tenant, request_id=self.request_id
        )
        return shown(MemberSerializer, row, status=201)


class MemberDetail(ApiView):
    needs = NEEDS
    place = Place(_place)
    serializer_class = MemberSerializer

    @extend_schema(operation_id="members_show")
    def get(self, request: Request, member_id: int) -> Response:
        return shown(MemberSerializer, _find(member_id))

    @extend_schema(operation_id="members_withdraw", responses={204: None})
    def delete(self, request: Request, member_id: int) -> Response:
        """The user has no role there any more."""
        row = _find(member_id)
        tenant = row.tenant.slug if row.tenant else ""
        _require_covered(self, row.role, tenant)
        member_services.withdraw_role(
            actor=self.actor, username=row.user.get_username(), tenant=tenant, request_id=self.request_id
        )
        return Response(status=204)


def _require_covered(view: ApiView, role: str, tenant: str) -> None:
    if not view.access.covers(Role(role), tenant):
        raise Forbidden(f"You do not hold all that the role {role!r} carries there.")


def _find(member_id: int) -> Membership:
    row = ROWS.filter(pk=member_id).first()
    if row is None:
        raise NotFound(f"There is no member {member_id}.")
    return row
