"""Staged roll-outs of policies over REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_OPTIONAL, optional_revision
from controlplane.errors import NotFound
from controlplane.policies.models import PolicyRevision, Rollout
from controlplane.policies.rows import tenant_of
from controlplane.rollouts import services
from controlplane.rollouts.selectors import Progress, progress_of
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.POLICIES_VIEW, change=Capability.POLICIES_CHANGE)


def _tenant(kwargs: Mapping[str, Any]) -> str | None:
    return Rollout.objects.filter(pk=kwargs["rollout_id"]).values_list("tenant", flat=True).first()


class ArmSerializer(serializers.Serializer[object]):
    requests = serializers.IntegerField()
    error_share = serializers.FloatField(allow_null=True)
    hit_share = serializers.FloatField(allow_null=True)
    ttft_p95_ms = serializers.FloatField(allow_null=True)


class VerdictSerializer(serializers.Serializer[object]):
    state = serializers.ChoiceField(choices=["breach", "pass", "wait"])
    sentence = serializers.CharField()
    breached = serializers.ListField(child=serializers.CharField())
    candidate = ArmSerializer()
    others = ArmSerializer(help_text="Routers without the candidate, or all of them before the roll-out.")


class PolicyRolloutSerializer(serializers.Serializer[Rollout]):
    id = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=PolicyRevision.Kind.choices)
    scope = serializers.CharField()
    candidate = serializers.IntegerField(help_text="Number of the revision that is rolled out.")
    values = serializers.DictField()
    stages = serializers.ListField(child=serializers.FloatField())
    stage = serializers.IntegerField(help_text="Index into stages.")
    share = serializers.FloatField(help_text="What the snapshot carries: at least one router takes part.")
    stage_s = serializers.IntegerField()
    guards = serializers.DictField()
    state = serializers.ChoiceField(choices=Rollout.State.choices)
    verdict = serializers.SerializerMethodField()
    author = serializers.CharField()
    reason = serializers.CharField()
    started_at = serializers.DateTimeField()
    stage_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    ended_by = serializers.CharField()
    outcome = serializers.CharField()
    revision = serializers.IntegerField()

    @extend_schema_field(VerdictSerializer(allow_null=True))
    def get_verdict(self, row: Rollout) -> dict[str, Any] | None:
        return row.verdict or None


class ProgressSerializer(serializers.Serializer[Progress]):
    rollout = PolicyRolloutSerializer()
    routers_with = serializers.ListField(child=serializers.CharField(), help_text="They said that they have it.")
    routers_without = serializers.ListField(child=serializers.CharField())


class GuardsBody(StrictSerializer):
    ttft_p95_ratio_max = serializers.FloatField(required=False, min_value=1, max_value=1_000_000)
    error_share_rise_max = serializers.FloatField(required=False, min_value=0, max_value=1)
    hit_share_drop_max = serializers.FloatField(required=False, min_value=0, max_value=1)
    requests_min = serializers.IntegerField(required=False, min_value=0, max_value=1_000_000)


class RolloutCreation(StrictSerializer):
    kind = serializers.ChoiceField(choices=PolicyRevision.Kind.choices)
    scope = Text(max_length=120)
    values = serializers.DictField(child=serializers.JSONField(), help_text="As for setting the policy of this kind.")
    stages = serializers.ListField(
        child=serializers.FloatField(min_value=0, max_value=1), required=False, min_length=1, max_length=20
    )
    stage_s = serializers.IntegerField(required=False, min_value=1, max_value=services.STAGE_S_MAX)
    guards = GuardsBody(required=False)
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class StepBody(StrictSerializer):
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class RolloutFilter(django_filters.FilterSet):
    state = django_filters.ChoiceFilter(choices=Rollout.State.choices)
    kind = django_filters.ChoiceFilter(choices=PolicyRevision.Kind.choices)
    scope = django_filters.CharFilter()


class RolloutList(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = Rollout.objects.all()
    serializer_class = PolicyRolloutSerializer
    filterset_class = RolloutFilter
    newest_first = True

    @extend_schema(operation_id="rollouts_list", responses=PolicyRolloutSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.listed(Rollout.objects.all())

    @extend_schema(
        operation_id="rollouts_start", request=RolloutCreation, responses={201: PolicyRolloutSerializer},
        parameters=[IF_MATCH_OPTIONAL],
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Put values in force on a share of the routers, stage by stage. If-Match: the policy's revision."""
        body = self.body(RolloutCreation)
        self.require_in(tenant_of(body["scope"]))
        row = services.start_rollout(
            actor=self.actor, if_revision=optional_revision(request), request_id=self.request_id, **body
        )
        return shown(PolicyRolloutSerializer, row, status=201)


class _RolloutView(ApiView):
    needs = NEEDS
    place = Place(_tenant)
    serializer_class = PolicyRolloutSerializer


class RolloutDetail(_RolloutView):
    @extend_schema(operation_id="rollouts_show", responses=ProgressSerializer)
    def get(self, request: Request, rollout_id: int) -> Response:
        """With the routers that have the candidate in force and those that have not."""
        row = Rollout.objects.filter(pk=rollout_id).first()
        if row is None:
            raise NotFound("There is no such roll-out.")
        return Response(ProgressSerializer(progress_of(row)).data)


class RolloutAdvance(_RolloutView):
    @extend_schema(operation_id="rollouts_advance", request=StepBody, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, rollout_id: int) -> Response:
        """Go to the next stage at once, whatever the guard says; the last step puts the candidate in force."""
        row = services.advance_rollout(
            rollout_id,
            actor=self.actor,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **self.body(StepBody),
        )
        return shown(PolicyRolloutSerializer, row)


class RolloutRollback(_RolloutView):
    @extend_schema(operation_id="rollouts_rollback", request=StepBody, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, rollout_id: int) -> Response:
        """End it on all routers; what stood before stays in force."""
        row = services.roll_back(
            rollout_id,
            actor=self.actor,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **self.body(StepBody),
        )
        return shown(PolicyRolloutSerializer, row)
