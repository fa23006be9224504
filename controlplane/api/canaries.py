"""Canaries over REST: what each worker's endpoints said last, and asking again."""

from __future__ import annotations

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView
from controlplane.api.filters import MomentFilter, OfWorker
from controlplane.isolation import canary_services
from controlplane.isolation.canary import ENDPOINTS
from controlplane.isolation.models import CanaryResult
from controlplane.tenants.roles import Capability

ROWS = CanaryResult.objects.select_related("worker__pool")
NEEDS = Needs(read=Capability.ISOLATION_VIEW, change=Capability.ISOLATION_CHANGE)
CACHED = "Cached tokens; null = not told or not asked."


class CanarySerializer(serializers.Serializer[CanaryResult]):
    id = serializers.IntegerField()
    worker = serializers.CharField(source="worker.worker_id")
    endpoint = serializers.ChoiceField(choices=list(ENDPOINTS))
    model = serializers.CharField()
    checked_at = serializers.DateTimeField()
    verdict = serializers.ChoiceField(
        choices=CanaryResult.Verdict.choices,
        help_text="`green` only when the own salt hits and neither another salt nor none does.",
    )
    reason = serializers.CharField()
    prompt_tokens = serializers.IntegerField(allow_null=True)
    prime_cached = serializers.IntegerField(allow_null=True, help_text=CACHED)
    foreign_cached = serializers.IntegerField(allow_null=True, help_text=CACHED)
    own_cached = serializers.IntegerField(allow_null=True, help_text=CACHED)
    unsalted_cached = serializers.IntegerField(allow_null=True, help_text=CACHED)
    duration_ms = serializers.FloatField()
    newest = serializers.BooleanField(help_text="Whether it is the last of its worker and endpoint.")


class CanaryFilter(OfWorker):
    pool = django_filters.CharFilter(field_name="worker__pool__slug")
    endpoint = django_filters.ChoiceFilter(choices=[(name, name) for name in ENDPOINTS])
    verdict = django_filters.ChoiceFilter(choices=CanaryResult.Verdict.choices)
    newest = django_filters.BooleanFilter()
    since = MomentFilter(field_name="checked_at", lookup_expr="gte")
    until = MomentFilter(field_name="checked_at", lookup_expr="lt")


class CanaryList(ApiView):
    needs = NEEDS
    queryset = ROWS
    serializer_class = CanarySerializer
    filterset_class = CanaryFilter
    newest_first = True

    @extend_schema(operation_id="canaries_list", responses=CanarySerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first, kept for 30 days; `newest=true` shows the last of each worker and endpoint."""
        return self.listed(ROWS.all())


class WorkerCanary(ApiView):
    needs = NEEDS
    has_outside_effects = True
    queryset = ROWS
    serializer_class = CanarySerializer

    @extend_schema(operation_id="workers_canary", request=None, responses=CanarySerializer(many=True))
    def post(self, request: Request, worker: str) -> Response:
        """Ask the worker over every endpoint: up to 30 s. Results are listed like the hourly ones."""
        results = canary_services.run_by_hand(worker, actor=self.actor, request_id=self.request_id)
        return Response({"items": self.get_serializer(results, many=True).data, "next_cursor": None})
