"""Cache namespaces over REST."""

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
from controlplane.api.tenants import StatusChange
from controlplane.errors import NotFound
from controlplane.namespaces import services
from controlplane.namespaces.models import PRIORITY_MAX, PRIORITY_MIN, CacheNamespace
from controlplane.tenants.models import Status
from controlplane.tenants.roles import Capability

ROWS = CacheNamespace.objects.select_related("tenant", "trust_group")
NEEDS = Needs(read=Capability.NAMESPACES_VIEW, change=Capability.NAMESPACES_CHANGE)
NEEDS_TO_REVOKE = Needs(read=Capability.NAMESPACES_VIEW, change=Capability.ACCESS_REVOKE)
OPERATORS_FIELDS = frozenset({"priority"})
"""Fields by which one tenant would take from others: changing them needs `limits.change`."""


class NamespaceSerializer(serializers.Serializer[CacheNamespace]):
    id = serializers.CharField(source="namespace_id")
    tenant = serializers.CharField(source="tenant.slug")
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=Status.choices)
    generation = serializers.IntegerField()
    generation_at = serializers.DateTimeField()
    isolation = serializers.ChoiceField(choices=CacheNamespace.Isolation.choices)
    project = serializers.CharField(help_text="Of isolation `project`: those of the tenant with the same one share.")
    trust_group = serializers.CharField(source="trust_group.slug", default="", help_text="Of isolation `trust_group`.")
    on_stale = serializers.ChoiceField(choices=CacheNamespace.OnStale.choices)
    unknown_fields = serializers.ChoiceField(choices=CacheNamespace.UnknownFields.choices)
    model_names = serializers.ListField(child=serializers.CharField())
    ttft_slo_ms = serializers.FloatField(allow_null=True)
    shed_over_slo = serializers.BooleanField()
    priority = serializers.IntegerField()
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class NamespaceChange(StrictSerializer):
    name = Text(max_length=200, required=False, allow_blank=True)
    on_stale = serializers.ChoiceField(choices=CacheNamespace.OnStale.choices, required=False)
    unknown_fields = serializers.ChoiceField(choices=CacheNamespace.UnknownFields.choices, required=False)
    model_names = serializers.ListField(child=Text(max_length=200), required=False, max_length=200)
    ttft_slo_ms = serializers.FloatField(required=False, allow_null=True, min_value=1, max_value=3_600_000)
    shed_over_slo = serializers.BooleanField(required=False)
    priority = serializers.IntegerField(required=False, min_value=PRIORITY_MIN, max_value=PRIORITY_MAX)


class NamespaceCreation(NamespaceChange):
    tenant = Text(max_length=48)
    slug = Text(max_length=48)


class Rotation(StrictSerializer):
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class NamespaceFilter(django_filters.FilterSet):
    tenant = django_filters.CharFilter(field_name="tenant__slug")
    isolation = django_filters.ChoiceFilter(choices=CacheNamespace.Isolation.choices)
    project = django_filters.CharFilter()
    trust_group = django_filters.CharFilter(field_name="trust_group__slug")
    status = django_filters.ChoiceFilter(choices=Status.choices)


class NamespaceList(ApiView):
    needs = NEEDS
    rows_of = "tenant__slug"
    queryset = ROWS
    serializer_class = NamespaceSerializer
    filterset_class = NamespaceFilter

    @extend_schema(operation_id="namespaces_list", responses=NamespaceSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())

    @extend_schema(operation_id="namespaces_create", request=NamespaceCreation, responses={201: NamespaceSerializer})
    def post(self, request: Request) -> Response:
        body = self.body(NamespaceCreation)
        self.require_in(body["tenant"])
        _require_limits(self, body, body["tenant"])
        row = services.create_namespace(actor=self.actor, request_id=self.request_id, **body)
        return shown(NamespaceSerializer, row, status=201)


class NamespaceDetail(ApiView):
    needs = NEEDS
    place = tenant_in("namespace")
    serializer_class = NamespaceSerializer

    @extend_schema(operation_id="namespaces_show")
    def get(self, request: Request, namespace: str) -> Response:
        tenant, _, slug = namespace.partition("/")
        row = ROWS.filter(tenant__slug=tenant, slug=slug).first()
        if row is None:
            raise NotFound(f"There is no namespace {namespace!r}.")
        return shown(NamespaceSerializer, row)

    @extend_schema(operation_id="namespaces_update", request=NamespaceChange, parameters=[IF_MATCH_REQUIRED])
    def patch(self, request: Request, namespace: str) -> Response:
        revision = required_revision(request)
        body = self.body(NamespaceChange)
        _require_limits(self, body, namespace.partition("/")[0])
        row = services.update_namespace(
            actor=self.actor, namespace=namespace, if_revision=revision, request_id=self.request_id, **body
        )
        return shown(NamespaceSerializer, row)


class NamespaceStatus(ApiView):
    needs = NEEDS_TO_REVOKE
    place = tenant_in("namespace")
    serializer_class = NamespaceSerializer

    @extend_schema(operation_id="namespaces_set_status", request=StatusChange, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, namespace: str) -> Response:
        """Suspend, resume or revoke. Revoked is final, and retires the namespace's generation."""
        body = self.body(StatusChange)
        row = services.set_namespace_status(
            actor=self.actor,
            namespace=namespace,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **body,
        )
        return shown(NamespaceSerializer, row)


class NamespaceRotation(ApiView):
    needs = NEEDS_TO_REVOKE
    place = tenant_in("namespace")
    serializer_class = NamespaceSerializer

    @extend_schema(operation_id="namespaces_rotate", request=Rotation, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, namespace: str) -> Response:
        """Begin a generation: nothing that is cached for the namespace can be reached any more."""
        body = self.body(Rotation)
        row = services.rotate_generation(
            actor=self.actor,
            namespace=namespace,
            reason=body["reason"],
            if_revision=optional_revision(request),
            request_id=self.request_id,
        )
        return shown(NamespaceSerializer, row)


def _require_limits(view: ApiView, body: Mapping[str, object], tenant: str) -> None:
    if OPERATORS_FIELDS & body.keys():
        view.require_in(tenant, Capability.LIMITS_CHANGE)
