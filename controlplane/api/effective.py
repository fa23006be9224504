"""The policy that holds for a namespace in a pool, value by value, with where each comes from."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView
from controlplane.errors import Invalid
from controlplane.policies.effective import effective_policy
from controlplane.tenants.roles import Capability


class CandidateSerializer(serializers.Serializer[object]):
    rollout = serializers.IntegerField()
    value = serializers.JSONField()
    share = serializers.FloatField(help_text="Routers that have it, 0…1.")


class EffectiveValueSerializer(serializers.Serializer[object]):
    name = serializers.CharField(source="field")
    value = serializers.JSONField()
    origin = serializers.CharField(
        source="source", help_text="namespace:<id>, pool:<slug>, global (policies), settings of …, or default."
    )
    revision = serializers.IntegerField(allow_null=True, help_text="Of the policy; null for settings and defaults.")
    expires_at = serializers.DateTimeField(allow_null=True, help_text="When the override ends.")
    asked = serializers.ListField(
        child=serializers.CharField(), help_text="Narrower sources that had nothing to say, narrowest first."
    )
    candidate = CandidateSerializer(allow_null=True)


class EffectivePolicySerializer(serializers.Serializer[object]):
    pool = serializers.CharField()
    namespace = serializers.CharField()
    tenant = serializers.CharField()
    values = EffectiveValueSerializer(many=True)


class EffectivePolicyView(ApiView):
    needs = Needs(read=Capability.POLICIES_VIEW)
    rows_of = "tenant"  # whose it is stands in the query: `get` asks for it
    serializer_class = EffectivePolicySerializer

    @extend_schema(
        operation_id="effective_policy_show",
        parameters=[
            OpenApiParameter("pool", str, required=True),
            OpenApiParameter("namespace", str, required=False, description="`<tenant>/<namespace>`."),
        ],
        responses=EffectivePolicySerializer,
    )
    def get(self, request: Request) -> Response:
        """Watermark, routing rule, priority and objective, each with the scope or setting that it comes from."""
        unknown = sorted(set(request.query_params) - {"pool", "namespace"})
        if unknown:
            raise Invalid.field(unknown[0], f"There is no parameter {unknown[0]!r}; there are: namespace, pool.")
        pool, namespace = request.query_params.get("pool", ""), request.query_params.get("namespace", "")
        if not pool:
            raise Invalid.field("pool", "Name the pool.")
        self.require_in(namespace.partition("/")[0])
        return Response(EffectivePolicySerializer(effective_policy(pool=pool, namespace=namespace)).data)
