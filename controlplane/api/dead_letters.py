"""Work that was given up after three deliveries, over REST."""

from __future__ import annotations

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView
from controlplane.deadletters import services
from controlplane.deadletters.models import TaskDelivery
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.FLEET_VIEW, change=Capability.FLEET_CHANGE)


class DeadLetterSerializer(serializers.Serializer[TaskDelivery]):
    id = serializers.IntegerField()
    task = serializers.CharField()
    subject = serializers.CharField(help_text="The task's argument, an id.")
    deliveries = serializers.IntegerField()
    error = serializers.CharField(help_text="Type and place of the last exception.")
    first_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField()
    dead_at = serializers.DateTimeField(allow_null=True)


class DeadLetterFilter(django_filters.FilterSet):
    task = django_filters.CharFilter()


class DeadLetterList(ApiView):
    needs = NEEDS
    queryset = TaskDelivery.objects.filter(dead_at__isnull=False)
    serializer_class = DeadLetterSerializer
    filterset_class = DeadLetterFilter
    newest_first = True

    @extend_schema(operation_id="dead_letters_list", responses=DeadLetterSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.listed(TaskDelivery.objects.filter(dead_at__isnull=False))


class DeadLetterRetry(ApiView):
    needs = NEEDS
    serializer_class = DeadLetterSerializer

    @extend_schema(operation_id="dead_letters_retry", request=None, responses={202: DeadLetterSerializer})
    def post(self, request: Request, letter_id: int) -> Response:
        """The next tick that finds the work begins it anew."""
        row = services.retry(letter_id, actor=self.actor, request_id=self.request_id)
        return Response(DeadLetterSerializer(row).data, status=202)
