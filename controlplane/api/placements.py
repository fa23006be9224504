"""Placement rules over REST: a hot prefix spread over at least so many workers until some time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import UNSEEN, Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_OPTIONAL, optional_revision
from controlplane.errors import NotFound
from controlplane.placements import services
from controlplane.placements.models import HOMES_MAX, HOMES_MIN, PREFIX_PATTERN, PlacementRule
from controlplane.placements.selectors import placements
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.POLICIES_VIEW, change=Capability.POLICIES_CHANGE)


def _place(kwargs: Mapping[str, Any]) -> str | None:
    row = placements().filter(pk=kwargs["placement_id"]).first()
    return None if row is None else str(row.namespace.tenant.slug)


class PlacementSerializer(serializers.Serializer[PlacementRule]):
    id = serializers.IntegerField()
    namespace = serializers.CharField(source="namespace.namespace_id")
    pool = serializers.CharField(source="pool.slug")
    prefix = serializers.CharField(help_text="Keyed id of the prefix, as the hot-spots page shows it.")
    homes = serializers.IntegerField(help_text="Workers that it is spread over at least; its load may ask for more.")
    until = serializers.DateTimeField(help_text="Then it ends by itself, on each router by its own clock.")
    reason = serializers.CharField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    ended_by = serializers.CharField()
    outcome = serializers.CharField(help_text="reverted, expired, or empty while it is in force.")
    revision = serializers.IntegerField()


class PlacementChange(StrictSerializer):
    namespace = Text(max_length=100)
    pool = Text(max_length=48)
    prefix = serializers.RegexField(PREFIX_PATTERN)
    homes = serializers.IntegerField(min_value=HOMES_MIN, max_value=HOMES_MAX)
    until = serializers.DateTimeField(help_text="At most seven days ahead.")
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class PlacementFilter(django_filters.FilterSet):
    namespace = django_filters.CharFilter(method="of_namespace", label="`<tenant>/<namespace>`")
    pool = django_filters.CharFilter(field_name="pool__slug")
    prefix = django_filters.CharFilter()
    open = django_filters.BooleanFilter(field_name="ended_at", lookup_expr="isnull", label="not ended")

    def of_namespace(self, rows: Any, name: str, value: str) -> Any:  # Any: querysets of the filter library
        tenant, _, slug = value.partition("/")
        return rows.filter(namespace__tenant__slug=tenant, namespace__slug=slug)


class PlacementList(ApiView):
    needs = NEEDS
    rows_of = "namespace__tenant__slug"
    queryset = PlacementRule.objects.all()
    serializer_class = PlacementSerializer
    filterset_class = PlacementFilter
    newest_first = True

    @extend_schema(operation_id="placements_list", responses=PlacementSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first; rules that ended stay for thirty days."""
        return self.listed(placements())

    @extend_schema(operation_id="placements_set", request=PlacementChange, responses={201: PlacementSerializer})
    def post(self, request: Request) -> Response:
        """Spread a prefix. One that has a rule in force gets these values in its place."""
        body = self.body(PlacementChange)
        self.require_in("")
        row = services.spread_prefix(actor=self.actor, request_id=self.request_id, **body)
        return shown(PlacementSerializer, row, status=201)


class PlacementDetail(ApiView):
    needs = NEEDS
    place = Place(_place)
    serializer_class = PlacementSerializer

    @extend_schema(operation_id="placements_show")
    def get(self, request: Request, placement_id: int) -> Response:
        row = placements().filter(pk=placement_id).first()
        if row is None:
            raise NotFound(UNSEEN)
        return shown(PlacementSerializer, row)

    @extend_schema(operation_id="placements_revert", parameters=[IF_MATCH_OPTIONAL], responses={204: None})
    def delete(self, request: Request, placement_id: int) -> Response:
        """End the rule at once: the prefix's load alone says how far it is spread then."""
        services.revert_placement(
            placement_id, actor=self.actor, if_revision=optional_revision(request), request_id=self.request_id
        )
        return Response(status=204)
