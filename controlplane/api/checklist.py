"""The go-live checklist over REST."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView
from controlplane.checklist.selectors import checklist
from controlplane.tenants.roles import Capability


class ChecklistLineSerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    title = serializers.CharField()
    state = serializers.ChoiceField(choices=["green", "red", "unknown"])
    evidence = serializers.CharField(help_text="What was seen, with figures, or what is missing to tell.")
    path = serializers.CharField(help_text="Page of the dashboard on which one acts.")
    action = serializers.CharField()


class ChecklistSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    green = serializers.IntegerField()
    red = serializers.IntegerField()
    unknown = serializers.IntegerField()
    lines = ChecklistLineSerializer(many=True)


class Checklist(ApiView):
    needs = Needs(read=Capability.FLEET_VIEW)
    serializer_class = ChecklistSerializer

    @extend_schema(operation_id="checklist_show", responses=ChecklistSerializer)
    def get(self, request: Request) -> Response:
        """Twelve lines against the live fleet; never green without evidence."""
        now = timezone.now()
        lines = checklist(now=now)
        counts = {state: sum(line.state == state for line in lines) for state in ("green", "red", "unknown")}
        document = {"at": now, **counts, "lines": [asdict(line) for line in lines]}
        return Response(ChecklistSerializer(document).data)
