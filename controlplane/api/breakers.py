"""Prefix breakers over REST: namespaces whose prompts an early change cuts off from their cached prefix."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView
from controlplane.errors import Invalid
from controlplane.telemetry.breaks import breakers
from controlplane.tenants.roles import Capability
from router.contract.telemetry import BREAK_KINDS

HOURS_DEFAULT = 2
HOURS_MAX = 7 * 24


class BreakerSerializer(serializers.Serializer[object]):
    namespace = serializers.CharField()
    pool = serializers.CharField()
    template = serializers.CharField(help_text="`slug@version` that the requests named, or empty.")
    kind = serializers.ChoiceField(choices=[*BREAK_KINDS, "other"], help_text="Guessed from the class of characters.")
    prompts = serializers.IntegerField()
    looked_at = serializers.IntegerField(
        help_text="Prompts of the same namespace, pool and template that were compared."
    )
    share = serializers.FloatField()
    position_bytes = serializers.IntegerField(help_text="Where the change begins in the prompt's canonical text.")
    lost_tokens_mean = serializers.IntegerField(help_text="About; computed each time though the prompts share them.")
    sentence = serializers.CharField()
    last_at = serializers.DateTimeField()


class BreakerListSerializer(serializers.Serializer[object]):
    items = BreakerSerializer(many=True)


class BreakerList(ApiView):
    needs = Needs(read=Capability.METRICS_VIEW)
    rows_of = "namespace"  # `get` leaves out what is not the caller's
    serializer_class = BreakerListSerializer

    @extend_schema(
        operation_id="prefix_breakers_list",
        parameters=[
            OpenApiParameter("namespace", str, description="`<tenant>/<namespace>`; all of them without."),
            OpenApiParameter("hours", int, description=f"1–{HOURS_MAX}, {HOURS_DEFAULT} without."),
        ],
        responses=BreakerListSerializer,
    )
    def get(self, request: Request) -> Response:
        """Most lost tokens first. Positions, kinds and counts; no text of any prompt is kept."""
        unknown = sorted(set(request.query_params) - {"namespace", "hours"})
        if unknown:
            raise Invalid.field(unknown[0], f"There is no parameter {unknown[0]!r}; there are: hours, namespace.")
        hours = request.query_params.get("hours", str(HOURS_DEFAULT))
        if not (hours.isascii() and hours.isdigit() and len(hours) <= 3 and 1 <= int(hours) <= HOURS_MAX):
            raise Invalid.field("hours", f"hours is a whole number from 1 to {HOURS_MAX}.")
        found = breakers(
            now=timezone.now(),
            window=timedelta(hours=int(hours)),
            namespace=request.query_params.get("namespace", ""),
            tenants=self.access.tenants(Capability.METRICS_VIEW),
        )
        return Response(BreakerListSerializer({"items": found}).data)
