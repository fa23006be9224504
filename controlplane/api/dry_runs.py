"""Dry runs of policies over REST: recorded decisions judged again."""

from __future__ import annotations

from dataclasses import asdict

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView, StrictSerializer, Text
from controlplane.policies.models import PolicyRevision
from controlplane.policies.rows import tenant_of
from controlplane.rollouts.dry_run import MINUTES_DEFAULT, MINUTES_MAX, dry_run
from controlplane.tenants.roles import Capability


class DryRunBody(StrictSerializer):
    kind = serializers.ChoiceField(choices=PolicyRevision.Kind.choices)
    scope = Text(max_length=120)
    values = serializers.DictField(child=serializers.JSONField(), help_text="As for setting the policy of this kind.")
    minutes = serializers.IntegerField(required=False, default=MINUTES_DEFAULT, min_value=1, max_value=MINUTES_MAX)


class ChangeSerializer(serializers.Serializer[object]):
    before = serializers.FloatField(allow_null=True)
    after = serializers.FloatField(allow_null=True)
    difference = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True, help_text="95 % interval of the paired difference.")
    high = serializers.FloatField(allow_null=True)
    certain = serializers.BooleanField(help_text="Enough decisions, and the interval excludes 0.")


class WorkerLoadSerializer(serializers.Serializer[object]):
    worker = serializers.CharField()
    requests_before = serializers.IntegerField()
    requests_after = serializers.IntegerField()
    uncached_tokens_before = serializers.IntegerField()
    uncached_tokens_after = serializers.IntegerField()


class DryRunSerializer(serializers.Serializer[object]):
    since = serializers.DateTimeField(source="from_")
    until = serializers.DateTimeField(source="to")
    decisions = serializers.IntegerField()
    skipped = serializers.DictField(child=serializers.IntegerField(), help_text="Records not judged, by reason.")
    too_few = serializers.BooleanField()
    kv_use_known_share = serializers.FloatField(allow_null=True)
    fidelity = serializers.FloatField(allow_null=True, help_text="Recorded choices that the policy in force repeats.")
    moved = serializers.IntegerField(help_text="Decisions that would go to another worker.")
    refused_before = serializers.IntegerField()
    refused_after = serializers.IntegerField()
    hit_share = ChangeSerializer()
    ttft_ms = ChangeSerializer(help_text="Predicted time to first token.")
    spills_before = serializers.DictField(child=serializers.IntegerField())
    spills_after = serializers.DictField(child=serializers.IntegerField())
    workers = WorkerLoadSerializer(many=True)
    scenario = serializers.DictField(
        allow_null=True,
        help_text="The proposed values as a scenario of `/what-ifs`, which replays recorded traffic and follows what"
        " builds up in caches and queues; null: nothing of them is simulated.",
    )


class PolicyDryRun(ApiView):
    # It reads policies and recorded decisions, and changes nothing.
    needs = Needs(read=Capability.POLICIES_VIEW, change=Capability.POLICIES_VIEW)
    rows_of = "tenant"  # whose it is stands in the body: `post` asks for it
    serializer_class = DryRunSerializer

    @extend_schema(operation_id="policies_dry_run", request=DryRunBody, responses=DryRunSerializer)
    def post(self, request: Request) -> Response:
        """What would have changed in the last minutes: hits, TTFT, spills, load by worker, with the sample's size."""
        body = self.body(DryRunBody)
        tenant = tenant_of(body["scope"])
        self.require_in(tenant)
        self.require_in(tenant, Capability.REQUESTS_VIEW)
        found = dry_run(**body)
        return Response(DryRunSerializer(asdict(found)).data)
