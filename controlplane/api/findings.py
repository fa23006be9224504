"""Isolation violations and findings over REST: filtered, acknowledged with a reason, exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text
from controlplane.api.exports import exported
from controlplane.api.filters import MomentFilter
from controlplane.errors import NotFound
from controlplane.fleet.models import Finding
from controlplane.isolation import services
from controlplane.isolation.models import IsolationViolation
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.ISOLATION_VIEW, change=Capability.ISOLATION_CHANGE)
FILE = {
    (200, media_type): OpenApiResponse(schema, description="The filtered rows, newest first: 100,000 at most.")
    for media_type, schema in (
        ("application/json", {"type": "array", "items": {"type": "object"}}),
        ("text/csv", OpenApiTypes.STR),
    )
}


class Acknowledgement(StrictSerializer):
    reason = Text(max_length=services.ACKNOWLEDGEMENT_LENGTH_MAX)


class ViolationSerializer(serializers.Serializer[IsolationViolation]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(choices=IsolationViolation.Kind.choices)
    severity = serializers.ChoiceField(choices=IsolationViolation.Severity.choices)
    request_id = serializers.CharField()
    tenant = serializers.CharField()
    namespace = serializers.CharField()
    pool = serializers.CharField()
    worker = serializers.CharField()
    model = serializers.CharField()
    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    bound_tokens = serializers.IntegerField(help_text="The most that the namespace's own history allows.")
    ttft_ms = serializers.FloatField(allow_null=True, help_text="Of kind `ttft`.")
    expected_ms = serializers.FloatField(allow_null=True, help_text="Of kind `ttft`: what its uncached tokens take.")
    evidence = serializers.CharField(
        help_text="Keyed hash of the prompt's blocks: equal for equal prompts of one namespace generation."
    )
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    acknowledged_by = serializers.CharField()
    acknowledgement = serializers.CharField()


class FindingSerializer(serializers.Serializer[Finding]):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    subject = serializers.CharField(help_text="Id of the worker, pool, namespace or router that it is about.")
    severity = serializers.ChoiceField(choices=Finding.Severity.choices)
    message = serializers.CharField()
    first_seen = serializers.DateTimeField()
    last_seen = serializers.DateTimeField()
    count = serializers.IntegerField()
    resolved_at = serializers.DateTimeField(allow_null=True, help_text="null: it is open.")
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    acknowledged_by = serializers.CharField()
    acknowledgement = serializers.CharField()


class _AcknowledgedFilter(django_filters.FilterSet):
    acknowledged = django_filters.BooleanFilter(
        field_name="acknowledged_at", lookup_expr="isnull", exclude=True, label="whether somebody has looked"
    )


class ViolationFilter(_AcknowledgedFilter):
    tenant = django_filters.CharFilter()
    namespace = django_filters.CharFilter()
    pool = django_filters.CharFilter()
    worker = django_filters.CharFilter()
    model = django_filters.CharFilter()
    evidence = django_filters.CharFilter()
    kind = django_filters.ChoiceFilter(choices=IsolationViolation.Kind.choices)
    severity = django_filters.ChoiceFilter(choices=IsolationViolation.Severity.choices)
    since = MomentFilter(field_name="at", lookup_expr="gte")
    until = MomentFilter(field_name="at", lookup_expr="lt")


class FindingFilter(_AcknowledgedFilter):
    kind = django_filters.CharFilter()
    subject = django_filters.CharFilter()
    severity = django_filters.ChoiceFilter(choices=Finding.Severity.choices)
    open = django_filters.BooleanFilter(field_name="resolved_at", lookup_expr="isnull")
    since = MomentFilter(field_name="last_seen", lookup_expr="gte")
    until = MomentFilter(field_name="last_seen", lookup_expr="lt")


def _tenant(kwargs: Mapping[str, Any]) -> str | None:
    return IsolationViolation.objects.filter(pk=kwargs["violation_id"]).values_list("tenant", flat=True).first()


class _Violations(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = IsolationViolation.objects.all()
    serializer_class = ViolationSerializer
    filterset_class = ViolationFilter
    newest_first = True

    def found(self) -> QuerySet[IsolationViolation]:
        return self.filter_queryset(self.visible(IsolationViolation.objects.order_by("-id")))


class ViolationList(_Violations):
    @extend_schema(operation_id="violations_list", responses=ViolationSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Answers with more cached tokens than their namespace's own history allows; newest first."""
        return self.listed(IsolationViolation.objects.all())


class ViolationExport(_Violations):
    pagination_class = None

    @extend_schema(operation_id="violations_export", responses=FILE)
    def get(self, request: Request, form: str) -> StreamingHttpResponse:
        """`violations.csv` or `violations.json`, with the list's filters."""
        return exported(self.found(), ViolationSerializer, form=form, name="violations")


class _ViolationView(ApiView):
    needs = NEEDS
    place = Place(_tenant)
    serializer_class = ViolationSerializer


class ViolationDetail(_ViolationView):
    @extend_schema(operation_id="violations_show")
    def get(self, request: Request, violation_id: int) -> Response:
        row = IsolationViolation.objects.filter(pk=violation_id).first()
        if row is None:
            raise NotFound("There is no such violation.")
        return Response(ViolationSerializer(row).data)


class ViolationAcknowledgement(_ViolationView):
    @extend_schema(operation_id="violations_acknowledge", request=Acknowledgement)
    def post(self, request: Request, violation_id: int) -> Response:
        """Says what was found. The namespace's finding closes with its last open violation."""
        reason = self.body(Acknowledgement)["reason"]
        row = services.acknowledge_violation(
            violation_id, actor=self.actor, acknowledgement=reason, request_id=self.request_id
        )
        return Response(ViolationSerializer(row).data)


class _Findings(ApiView):
    needs = NEEDS
    queryset = Finding.objects.all()
    serializer_class = FindingSerializer
    filterset_class = FindingFilter
    newest_first = True


class FindingList(_Findings):
    @extend_schema(operation_id="findings_list", responses=FindingSerializer(many=True))
    def get(self, request: Request) -> Response:
        """What an operator should know of: newest first, `open=true` for what lasts."""
        return self.listed(Finding.objects.all())


class FindingExport(_Findings):
    pagination_class = None

    @extend_schema(operation_id="findings_export", responses=FILE)
    def get(self, request: Request, form: str) -> StreamingHttpResponse:
        """`findings.csv` or `findings.json`, with the list's filters."""
        rows = self.filter_queryset(Finding.objects.order_by("-id"))
        return exported(rows, FindingSerializer, form=form, name="findings")


class FindingDetail(ApiView):
    needs = NEEDS
    serializer_class = FindingSerializer

    @extend_schema(operation_id="findings_show")
    def get(self, request: Request, finding_id: int) -> Response:
        row = Finding.objects.filter(pk=finding_id).first()
        if row is None:
            raise NotFound("There is no such finding.")
        return Response(FindingSerializer(row).data)


class FindingAcknowledgement(ApiView):
    needs = NEEDS
    serializer_class = FindingSerializer

    @extend_schema(operation_id="findings_acknowledge", request=Acknowledgement)
    def post(self, request: Request, finding_id: int) -> Response:
        """Says why it may wait, or what was done. It stays open while what it tells of lasts."""
        reason = self.body(Acknowledgement)["reason"]
        row = services.acknowledge_finding(
            finding_id, actor=self.actor, acknowledgement=reason, request_id=self.request_id
        )
        return Response(FindingSerializer(row).data)
