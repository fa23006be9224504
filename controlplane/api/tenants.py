"""Tenants over REST."""

from __future__ import annotations

from collections.abc import Mapping

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, tenant_in
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_OPTIONAL, IF_MATCH_REQUIRED, optional_revision, required_revision
from controlplane.errors import NotFound
from controlplane.tenants import services
from controlplane.tenants.models import PREFILL_TOKENS_MAX, Status, Tenant
from controlplane.tenants.roles import Capability


class TenantSerializer(serializers.Serializer[Tenant]):
    id = serializers.CharField(source="slug")
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=Status.choices)
    prefill_tokens_per_s = serializers.FloatField(
        allow_null=True, help_text="Uncached prompt tokens a second it may cause on each router; null = no limit."
    )
    prefill_burst_tokens = serializers.IntegerField(
        allow_null=True, help_text="Uncached prompt tokens it may save up; null = ten seconds of its rate."
    )
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class TenantChange(StrictSerializer):
    name = Text(max_length=200, required=False)
    prefill_tokens_per_s = serializers.FloatField(
        required=False, allow_null=True, min_value=1, max_value=PREFILL_TOKENS_MAX
    )
    prefill_burst_tokens = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=PREFILL_TOKENS_MAX
    )


class TenantCreation(TenantChange):
    id = Text(max_length=48)
    name = Text(max_length=200)


class StatusChange(StrictSerializer):
    status = serializers.ChoiceField(choices=Status.choices)
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class TenantFilter(django_filters.FilterSet):
    status = django_filters.ChoiceFilter(choices=Status.choices)


class TenantList(ApiView):
    needs = Needs(read=Capability.TENANTS_VIEW, change=Capability.TENANTS_CHANGE)
    rows_of = "slug"
    queryset = Tenant.objects.all()
    serializer_class = TenantSerializer
    filterset_class = TenantFilter

    @extend_schema(operation_id="tenants_list", responses=TenantSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(Tenant.objects.all())

    @extend_schema(operation_id="tenants_create", request=TenantCreation, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        body = self.body(TenantCreation)
        self.require_in("")
        _require_limits(self, body)
        row = services.create_tenant(actor=self.actor, slug=body.pop("id"), request_id=self.request_id, **body)
        return shown(TenantSerializer, row, status=201)


class TenantDetail(ApiView):
    needs = Needs(read=Capability.TENANTS_VIEW, change=Capability.TENANTS_CHANGE)
    place = tenant_in("tenant")
    serializer_class = TenantSerializer

    @extend_schema(operation_id="tenants_show")
    def get(self, request: Request, tenant: str) -> Response:
        row = Tenant.objects.filter(slug=tenant).first()
        if row is None:
            raise NotFound(f"There is no tenant {tenant!r}.")
        return shown(TenantSerializer, row)

    @extend_schema(operation_id="tenants_update", request=TenantChange, parameters=[IF_MATCH_REQUIRED])
    def patch(self, request: Request, tenant: str) -> Response:
        revision = required_revision(request)
        body = self.body(TenantChange)
        _require_limits(self, body)
        row = services.update_tenant(
            actor=self.actor, tenant=tenant, if_revision=revision, request_id=self.request_id, **body
        )
        return shown(TenantSerializer, row)


class TenantStatus(ApiView):
    needs = Needs(read=Capability.TENANTS_VIEW, change=Capability.TENANTS_REVOKE)
    place = tenant_in("tenant")
    serializer_class = TenantSerializer

    @extend_schema(operation_id="tenants_set_status", request=StatusChange, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, tenant: str) -> Response:
        """Suspend, resume or revoke. Revoked is final."""
        body = self.body(StatusChange)
        row = services.set_tenant_status(
            actor=self.actor,
            tenant=tenant,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **body,
        )
        return shown(TenantSerializer, row)


def _require_limits(view: ApiView, body: Mapping[str, object]) -> None:
    if body.keys() - {"id", "name"}:
        view.require_in("", Capability.LIMITS_CHANGE)
