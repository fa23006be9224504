"""Change requests over REST: changes that two persons must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_OPTIONAL, optional_revision
from controlplane.approvals import services
from controlplane.approvals.models import ChangeRequest
from controlplane.errors import NotFound
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.ISOLATION_VIEW, change=Capability.CHANGES_APPROVE)


def _tenant(kwargs: Mapping[str, Any]) -> str | None:
    return ChangeRequest.objects.filter(pk=kwargs["change_id"]).values_list("tenant", flat=True).first()


class ChangeRequestSerializer(serializers.Serializer[ChangeRequest]):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    subject = serializers.CharField()
    tenant = serializers.CharField()
    change = serializers.DictField()
    reason = serializers.CharField()
    state = serializers.ChoiceField(choices=ChangeRequest.State.choices)
    proposed_by = serializers.CharField()
    proposed_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    decided_by = serializers.CharField()
    decided_at = serializers.DateTimeField(allow_null=True)
    decision = serializers.CharField()
    revision = serializers.IntegerField()


class DecisionBody(StrictSerializer):
    decision = Text(max_length=500, required=False, allow_blank=True, default="")


class ChangeRequestFilter(django_filters.FilterSet):
    state = django_filters.ChoiceFilter(choices=ChangeRequest.State.choices)
    kind = django_filters.CharFilter()
    subject = django_filters.CharFilter()


class ChangeRequestList(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = ChangeRequest.objects.all()
    serializer_class = ChangeRequestSerializer
    filterset_class = ChangeRequestFilter
    newest_first = True

    @extend_schema(operation_id="change_requests_list", responses=ChangeRequestSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first. They are proposed where the change belongs, such as a namespace's sharing."""
        return self.listed(ChangeRequest.objects.all())


class _ChangeRequestView(ApiView):
    needs = NEEDS
    place = Place(_tenant)
    serializer_class = ChangeRequestSerializer


class ChangeRequestDetail(_ChangeRequestView):
    @extend_schema(operation_id="change_requests_show")
    def get(self, request: Request, change_id: int) -> Response:
        row = ChangeRequest.objects.filter(pk=change_id).first()
        if row is None:
            raise NotFound("There is no such change request.")
        return shown(ChangeRequestSerializer, row)


class ChangeRequestApproval(_ChangeRequestView):
    @extend_schema(operation_id="change_requests_approve", request=DecisionBody, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, change_id: int) -> Response:
        """Apply the change. Who proposed it may not: 403 `same_person`."""
        body = self.body(DecisionBody)
        row = services.approve(
            change_id,
            actor=self.actor,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **body,
        )
        return shown(ChangeRequestSerializer, row)


class ChangeRequestRejection(_ChangeRequestView):
    # Whoever may propose may withdraw.
    needs = Needs(read=Capability.ISOLATION_VIEW, change=Capability.SHARING_CHANGE)

    @extend_schema(operation_id="change_requests_reject", request=DecisionBody, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, change_id: int) -> Response:
        """Refuse the change; its proposer withdraws it by the same call."""
        body = self.body(DecisionBody)
        row = services.reject(
            change_id,
            actor=self.actor,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **body,
        )
        return shown(ChangeRequestSerializer, row)
