"""What is wrong at this moment, in the JSON that Alertmanager posts to webhooks (version 4)."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView
from controlplane.tenants.roles import Capability
from controlplane.webhooks.alerts import current_alerts


class AlertSerializer(serializers.Serializer[Any]):
    status = serializers.ChoiceField(choices=["firing", "resolved"])
    labels = serializers.DictField(child=serializers.CharField())
    annotations = serializers.DictField(child=serializers.CharField())
    startsAt = serializers.CharField()
    endsAt = serializers.CharField(help_text="0001-01-01T00:00:00Z while it goes on.")
    generatorURL = serializers.CharField()
    fingerprint = serializers.CharField()


class AlertsSerializer(serializers.Serializer[Any]):
    version = serializers.CharField()
    groupKey = serializers.CharField()
    truncatedAlerts = serializers.IntegerField()
    status = serializers.ChoiceField(choices=["firing", "resolved"])
    receiver = serializers.CharField()
    groupLabels = serializers.DictField(child=serializers.CharField())
    commonLabels = serializers.DictField(child=serializers.CharField())
    commonAnnotations = serializers.DictField(child=serializers.CharField())
    externalURL = serializers.CharField()
    alerts = AlertSerializer(many=True)


class Alerts(ApiView):
    needs = Needs(read=Capability.ISOLATION_VIEW)
    serializer_class = AlertsSerializer

    @extend_schema(operation_id="alerts_show", responses=AlertsSerializer)
    def get(self, request: Request) -> Response:
        """Open findings, and violations that nobody has acknowledged."""
        return Response(current_alerts())
