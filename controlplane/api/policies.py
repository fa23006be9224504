"""Routing policies, the revisions of every policy, and one-click rollback, over REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.filters import MomentFilter
from controlplane.api.revisions import IF_MATCH_OPTIONAL, IF_MATCH_REQUIRED, optional_revision, required_revision
from controlplane.api.watermarks import IF_NONE_MATCH, NEEDS, expected_revision
from controlplane.errors import NotFound
from controlplane.fleet.models import WorkerPool
from controlplane.policies import services
from controlplane.policies.models import PolicyRevision, RoutingPolicy
from controlplane.policies.revisions import revision
from controlplane.policies.rows import find_row, tenant_of

Kind = PolicyRevision.Kind
NUMBER_MAX = 2**31 - 1


def scope_place(kwargs: Mapping[str, Any]) -> str:
    return tenant_of(str(kwargs["scope"]))


class RoutingPolicySerializer(serializers.Serializer[RoutingPolicy]):
    scope = serializers.CharField(source="scope_id", help_text="pool:<pool> or namespace:<tenant>/<namespace>")
    values = serializers.DictField(help_text="Fields that replace the settings; the others stay as they are set.")
    revision = serializers.IntegerField()
    expires_at = serializers.DateTimeField(allow_null=True, help_text="When the override ends; null = it stays.")
    updated_at = serializers.DateTimeField()


class RoutingValues(StrictSerializer):
    routing = serializers.ChoiceField(choices=WorkerPool.Routing.choices, required=False, allow_null=True)
    virtual_nodes = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=1000)
    spill_outstanding = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=10_000)
    priority = serializers.IntegerField(required=False, allow_null=True, min_value=-4, max_value=4)
    ttft_slo_ms = serializers.FloatField(required=False, allow_null=True, min_value=0.001, max_value=600_000)
    shed_over_slo = serializers.BooleanField(required=False, allow_null=True)


class RoutingPolicyChange(StrictSerializer):
    values = RoutingValues(
        help_text="routing, virtual_nodes, spill_outstanding for a pool; priority, ttft_slo_ms, shed_over_slo for a "
        "namespace. null = as the settings say."
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class Rollback(StrictSerializer):
    to = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=1, max_value=NUMBER_MAX,
        help_text="Number of the revision to repeat; null = the one in force before.",
    )  # fmt: skip
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class PolicyRevisionSerializer(serializers.Serializer[PolicyRevision]):
    kind = serializers.ChoiceField(choices=Kind.choices)
    scope = serializers.CharField()
    number = serializers.IntegerField()
    values = serializers.DictField(allow_null=True, help_text="null: the scope had no policy of its own from here on.")
    origin = serializers.ChoiceField(choices=PolicyRevision.Origin.choices)
    repeats = serializers.IntegerField(allow_null=True, help_text="The earlier revision whose values these are.")
    expires_at = serializers.DateTimeField(allow_null=True)
    author = serializers.CharField()
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()


class RoutingPolicyFilter(django_filters.FilterSet):
    kind = django_filters.ChoiceFilter(field_name="scope", choices=RoutingPolicy.Scope.choices)


class PolicyRevisionFilter(django_filters.FilterSet):
    kind = django_filters.ChoiceFilter(choices=Kind.choices)
    scope = django_filters.CharFilter()
    author = django_filters.CharFilter()
    since = MomentFilter(field_name="created_at", lookup_expr="gte")


class RoutingPolicyList(ApiView):
    needs = NEEDS
    rows_of = "namespace__tenant__slug"
    queryset = RoutingPolicy.objects.select_related("pool", "namespace__tenant")
    serializer_class = RoutingPolicySerializer
    filterset_class = RoutingPolicyFilter

    @extend_schema(operation_id="routing_policies_list", responses=RoutingPolicySerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(self.queryset.all())


class RoutingPolicyDetail(ApiView):
    needs = NEEDS
    place = Place(scope_place)
    serializer_class = RoutingPolicySerializer

    @extend_schema(operation_id="routing_policies_show")
    def get(self, request: Request, scope: str) -> Response:
        row = find_row(Kind.ROUTING, scope) if scope != "global" else None
        if row is None:
            raise NotFound(f"There is no routing policy for {scope!r}; the settings hold.")
        return shown(RoutingPolicySerializer, row)

    @extend_schema(
        operation_id="routing_policies_set", request=RoutingPolicyChange, parameters=[IF_MATCH_OPTIONAL, IF_NONE_MATCH]
    )
    def put(self, request: Request, scope: str) -> Response:
        """Create (`If-None-Match: *`) or change (`If-Match`); with `expires_at` it ends by itself on every router."""
        revision_seen = expected_revision(request)
        body = self.body(RoutingPolicyChange)
        row = services.set_routing(
            actor=self.actor, scope=scope, if_revision=revision_seen, request_id=self.request_id, **body
        )
        return shown(RoutingPolicySerializer, row)

    @extend_schema(operation_id="routing_policies_clear", parameters=[IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, scope: str) -> Response:
        """The settings of the pool or namespace hold then."""
        services.clear_policy(
            kind=Kind.ROUTING,
            scope=scope,
            actor=self.actor,
            if_revision=required_revision(request),
            request_id=self.request_id,
        )
        return Response(status=204)


class _Rollback(ApiView):
    needs = NEEDS
    place = Place(scope_place)
    serializer_class = PolicyRevisionSerializer
    kind: str

    def rolled_back(self, request: Request, scope: str) -> Response:
        body = self.body(Rollback)
        row = services.rollback_policy(
            kind=self.kind,
            scope=scope,
            actor=self.actor,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **body,
        )
        return Response(PolicyRevisionSerializer(row).data)


class RoutingRollback(_Rollback):
    kind = Kind.ROUTING

    @extend_schema(operation_id="routing_policies_rollback", request=Rollback, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, scope: str) -> Response:
        """Put an earlier revision's values in force again, as a further revision."""
        return self.rolled_back(request, scope)


class WatermarkRollback(_Rollback):
    kind = Kind.WATERMARK

    @extend_schema(operation_id="watermark_policies_rollback", request=Rollback, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, scope: str) -> Response:
        """Put an earlier revision's values in force again, as a further revision."""
        return self.rolled_back(request, scope)


class PolicyRevisionList(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = PolicyRevision.objects.all()
    serializer_class = PolicyRevisionSerializer
    filterset_class = PolicyRevisionFilter
    newest_first = True

    @extend_schema(operation_id="policy_revisions_list", responses=PolicyRevisionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first. Revisions are never changed or deleted."""
        return self.listed(PolicyRevision.objects.all())


class PolicyRevisionDetail(ApiView):
    needs = NEEDS
    place = Place(scope_place)
    serializer_class = PolicyRevisionSerializer

    @extend_schema(operation_id="policy_revisions_show")
    def get(self, request: Request, kind: str, scope: str, number: int) -> Response:
        if kind not in Kind.values or number > NUMBER_MAX:
            raise NotFound("There is no such revision.")
        return Response(PolicyRevisionSerializer(revision(kind, scope, number)).data)
