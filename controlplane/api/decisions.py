"""Explained decisions over REST: why a request went where it went. Those that routers sampled, for three days."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
import msgspec
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView
from controlplane.api.filters import MomentFilter
from controlplane.errors import NotFound
from controlplane.telemetry.decisions import off_by, without_others_load
from controlplane.telemetry.models import DecisionRecord
from controlplane.tenants.roles import Capability
from router.contract.telemetry import DecisionSample

NEEDS = Needs(read=Capability.REQUESTS_VIEW)
OF_FLEET = ("outstanding", "kv_use", "prefill_tokens_per_s")
"""Of a candidate: what tells how busy a worker is with others' requests."""


class DecisionSerializer(serializers.Serializer[DecisionRecord]):
    request_id = serializers.CharField()
    at = serializers.DateTimeField()
    tenant = serializers.CharField()
    namespace = serializers.CharField()
    pool = serializers.CharField()
    model = serializers.CharField()
    worker = serializers.CharField(help_text="`<pool>/<worker>`; empty: none was chosen.")
    outcome = serializers.CharField()
    reason = serializers.CharField()
    ttft_ms = serializers.FloatField(allow_null=True)
    predicted_hit_tokens = serializers.IntegerField(allow_null=True)
    cached_tokens = serializers.IntegerField(allow_null=True, help_text="Delivered; null: the worker did not say.")


class RankedCandidateSerializer(serializers.Serializer[Any]):
    """Terms in ms: net = saved − queue − pressure − imbalance − transfer − priority + replica."""

    worker = serializers.CharField()
    excluded = serializers.CharField(help_text="The filter that took it out; its terms were then not looked at.")
    matched_tokens = serializers.IntegerField()
    expected_tokens = serializers.IntegerField(help_text="Of the matched: on their way to it in other requests.")
    pulled_tokens = serializers.IntegerField(help_text="Of the matched: pulled from another worker.")
    saved_ms = serializers.FloatField()
    queue_ms = serializers.FloatField()
    pressure_ms = serializers.FloatField()
    imbalance_ms = serializers.FloatField()
    transfer_ms = serializers.FloatField()
    priority_ms = serializers.FloatField()
    replica_ms = serializers.FloatField()
    net_ms = serializers.FloatField()
    outstanding = serializers.IntegerField(required=False, help_text="For those who see the fleet.")
    kv_use = serializers.FloatField(allow_null=True, required=False, help_text="For those who see the fleet.")
    prefill_tokens_per_s = serializers.FloatField(required=False, help_text="For those who see the fleet.")


class ExplainedSerializer(DecisionSerializer):
    sentence = serializers.CharField(help_text="The choice in one sentence with numbers.")
    policy_version = serializers.IntegerField(help_text="Of the snapshot that it was decided by.")
    template = serializers.CharField(help_text="`<template>@<version>`; empty: none.")
    exact = serializers.BooleanField(help_text="Whether the workers themselves told what they hold.")
    prompt_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField(allow_null=True)
    predicted_ttft_ms = serializers.FloatField()
    duration_ms = serializers.FloatField(allow_null=True)
    decision_us = serializers.FloatField()
    queue_ms = serializers.FloatField(allow_null=True)
    preferred = serializers.CharField(help_text="Where affinity alone would have sent it; empty: nowhere.")
    spill = serializers.CharField(help_text="Why it left the preferred worker; empty: it did not.")
    retries = serializers.IntegerField()
    candidates = RankedCandidateSerializer(many=True)


class DecisionFilter(django_filters.FilterSet):
    request_id = django_filters.CharFilter()
    tenant = django_filters.CharFilter()
    namespace = django_filters.CharFilter()
    pool = django_filters.CharFilter()
    worker = django_filters.CharFilter()
    model = django_filters.CharFilter()
    outcome = django_filters.CharFilter()
    reason = django_filters.CharFilter()
    since = MomentFilter(field_name="at", lookup_expr="gte")
    until = MomentFilter(field_name="at", lookup_expr="lt")
    ttft_ms_min = django_filters.NumberFilter(field_name="ttft_ms", lookup_expr="gte", min_value=0, max_value=10**9)
    off_tokens_min = django_filters.NumberFilter(
        method="of_error", label="predicted and delivered hit tokens differ by so many", min_value=0, max_value=10**9
    )

    def of_error(self, rows: QuerySet[Any], name: str, value: Any) -> QuerySet[Any]:
        return rows.filter(off_by(int(value)))


class DecisionList(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = DecisionRecord.objects.all()
    serializer_class = DecisionSerializer
    filterset_class = DecisionFilter
    newest_first = True

    @extend_schema(operation_id="decisions_list", responses=DecisionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first: all errors and violations, slow requests, and a small random share of the rest."""
        return self.listed(DecisionRecord.objects.defer("detail"))


def _tenant(kwargs: Mapping[str, Any]) -> str | None:
    return DecisionRecord.objects.filter(request_id=kwargs["request_id"]).values_list("tenant", flat=True).first()


class DecisionDetail(ApiView):
    needs = NEEDS
    place = Place(_tenant)
    serializer_class = ExplainedSerializer

    @extend_schema(operation_id="decisions_show", responses=ExplainedSerializer)
    def get(self, request: Request, request_id: str) -> Response:
        """With every candidate and its terms. 404 as well for a request that was not sampled, or is too old."""
        row = DecisionRecord.objects.filter(request_id=request_id).first()
        if row is None:
            raise NotFound("No decision of such a request is kept.")
        try:
            # The stored form leaves defaults out; only the contract's type knows that a missing term is 0.
            sample = msgspec.convert(row.detail, DecisionSample)
        except msgspec.ValidationError as error:
            raise NotFound("The stored decision cannot be read.") from error
        return Response(explained(row, sample, of_fleet=self.access.may(Capability.FLEET_VIEW)))


def explained(row: DecisionRecord, sample: DecisionSample, *, of_fleet: bool) -> dict[str, Any]:
    """The columns, the sample and its candidates, best first. Without `of_fleet` nothing tells of others' requests."""
    names = [str(name) for name in ExplainedSerializer().fields]
    known: dict[str, Any] = {name: getattr(sample, name) for name in names if hasattr(sample, name)}
    ranked = sorted(sample.candidates, key=lambda each: (bool(each.excluded), -each.net_ms))
    candidates: list[dict[str, Any]] = [dict(RankedCandidateSerializer(each).data) for each in ranked]
    if not of_fleet:
        known["sentence"] = without_others_load(sample.sentence)
        candidates = [{key: value for key, value in each.items() if key not in OF_FLEET} for each in candidates]
    return known | DecisionSerializer(row).data | {"candidates": candidates}
