"""The audit log over REST, to read."""

from __future__ import annotations

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView
from controlplane.audit.models import AuditEntry


class AuditSerializer(serializers.Serializer[AuditEntry]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    action = serializers.CharField()
    object_type = serializers.CharField()
    object_id = serializers.CharField()
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)
    reason = serializers.CharField()
    request_id = serializers.CharField()
    affects_routing = serializers.BooleanField()
    previous_hash = serializers.CharField()
    hash = serializers.CharField()


class AuditFilter(django_filters.FilterSet):
    actor = django_filters.CharFilter()
    action = django_filters.CharFilter()
    object_type = django_filters.CharFilter()
    object_id = django_filters.CharFilter()
    request_id = django_filters.CharFilter()
    since = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")


class AuditList(ApiView):
    queryset = AuditEntry.objects.all()
    serializer_class = AuditSerializer
    filterset_class = AuditFilter
    newest_first = True

    @extend_schema(operation_id="audit_list", responses=AuditSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.listed(AuditEntry.objects.all())
