"""Watermark policies over REST, addressed by scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.problems import PreconditionRequired
from controlplane.api.revisions import IF_MATCH_OPTIONAL, IF_MATCH_REQUIRED, required_revision
from controlplane.errors import NotFound
from controlplane.policies import services
from controlplane.policies.models import WatermarkPolicy
from controlplane.policies.selectors import find_policy
from controlplane.tenants.roles import Capability

ROWS = WatermarkPolicy.objects.select_related("pool", "namespace__tenant")
NEEDS = Needs(read=Capability.POLICIES_VIEW, change=Capability.POLICIES_CHANGE)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match", str, OpenApiParameter.HEADER, required=False, description="`*`: only when there is none yet."
)


def _place(kwargs: Mapping[str, Any]) -> str:
    kind, _, name = str(kwargs["scope"]).partition(":")
    return name.partition("/")[0] if kind == WatermarkPolicy.Scope.NAMESPACE else ""


class WatermarkSerializer(serializers.Serializer[WatermarkPolicy]):
    scope = serializers.CharField(source="scope_id", help_text="global, pool:<pool> or namespace:<tenant>/<namespace>")
    low = serializers.FloatField(help_text="KV use (0…1) at which a worker takes fresh prefixes again.")
    high = serializers.FloatField(help_text="KV use (0…1) at which a worker stops taking fresh prefixes.")
    dwell_s = serializers.FloatField(help_text="Least seconds between two changes of one worker.")
    revision = serializers.IntegerField()
    expires_at = serializers.DateTimeField(allow_null=True, help_text="When the override ends; null = it stays.")
    updated_at = serializers.DateTimeField()


class WatermarkChange(StrictSerializer):
    low = serializers.FloatField()
    high = serializers.FloatField()
    dwell_s = serializers.FloatField(required=False, default=0.0)
    expires_at = serializers.DateTimeField(
        required=False,
        allow_null=True,
        default=None,
        help_text="An override: then what stood before holds again, on each router by its own clock.",
    )
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class WatermarkFilter(django_filters.FilterSet):
    kind = django_filters.ChoiceFilter(field_name="scope", choices=WatermarkPolicy.Scope.choices)


class WatermarkList(ApiView):
    needs = NEEDS
    rows_of = "namespace__tenant__slug"
    queryset = ROWS
    serializer_class = WatermarkSerializer
    filterset_class = WatermarkFilter

    @extend_schema(operation_id="watermark_policies_list", responses=WatermarkSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())


class WatermarkDetail(ApiView):
    needs = NEEDS
    place = Place(_place)
    serializer_class = WatermarkSerializer

    @extend_schema(operation_id="watermark_policies_show")
    def get(self, request: Request, scope: str) -> Response:
        row = find_policy(scope)
        if row is None:
            raise NotFound(f"There is no watermark policy for {scope!r}; the wider scope's holds.")
        return shown(WatermarkSerializer, row)

    @extend_schema(
        operation_id="watermark_policies_set", request=WatermarkChange, parameters=[IF_MATCH_OPTIONAL, IF_NONE_MATCH]
    )
    def put(self, request: Request, scope: str) -> Response:
        """Create (`If-None-Match: *`) or change (`If-Match`) the policy of a scope; one of the two is required."""
        revision = expected_revision(request)
        body = self.body(WatermarkChange)
        row = services.set_watermark(
            actor=self.actor, scope=scope, if_revision=revision, request_id=self.request_id, **body
        )
        return shown(WatermarkSerializer, row)

    @extend_schema(operation_id="watermark_policies_clear", parameters=[IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, scope: str) -> Response:
        """The wider scope's policy holds then. The global policy cannot be deleted."""
        services.clear_watermark(
            actor=self.actor, scope=scope, if_revision=required_revision(request), request_id=self.request_id
        )
        return Response(status=204)


def expected_revision(request: Request) -> int | None:
    if request.headers.get("If-None-Match", "").strip() == "*":
        return 0
    if "If-Match" not in request.headers:
        raise PreconditionRequired("Send If-Match with the ETag that you saw, or If-None-Match: * to create.")
    return required_revision(request)
