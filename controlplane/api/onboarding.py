"""One call that makes a tenant ready to serve: tenant, namespace, key, limits and watermark."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView, StrictSerializer, Text
from controlplane.api.keys import IssuedKeySerializer, KeySerializer
from controlplane.api.namespaces import NamespaceChange, NamespaceSerializer
from controlplane.api.tenants import TenantCreation, TenantSerializer
from controlplane.api.watermarks import WatermarkSerializer
from controlplane.onboarding.services import NEEDED, Onboarded, onboard_tenant
from controlplane.policies.watermarks import WatermarkValues
from controlplane.tenants.roles import Capability


class FirstNamespace(NamespaceChange):
    slug = Text(max_length=48)


class FirstKey(StrictSerializer):
    name = Text(max_length=200)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class FirstWatermark(StrictSerializer):
    low = serializers.FloatField()
    high = serializers.FloatField()
    dwell_s = serializers.FloatField(required=False, default=0.0)


class OnboardingBody(StrictSerializer):
    tenant = TenantCreation(help_text="With its prefill budget, where it has one.")
    namespace = FirstNamespace(help_text="With its objective, priority and models.")
    key = FirstKey()
    watermark = FirstWatermark(required=False, allow_null=True, help_text="Of the namespace; absent: the pool's holds.")


class OnboardedSerializer(serializers.Serializer[Onboarded]):
    tenant = TenantSerializer()
    namespace = NamespaceSerializer()
    key = IssuedKeySerializer()
    watermark = WatermarkSerializer(allow_null=True)


class Onboarding(ApiView):
    needs = Needs(read=Capability.TENANTS_VIEW, change=Capability.TENANTS_CHANGE)
    serializer_class = OnboardedSerializer

    @extend_schema(operation_id="onboarding", request=OnboardingBody, responses={201: OnboardedSerializer})
    def post(self, request: Request) -> Response:
        """All of it or nothing. Send an Idempotency-Key: a repeat gets the first answer, with the key in it."""
        for capability in NEEDED:
            self.require_in("", capability)
        body = self.body(OnboardingBody)
        done = onboard_tenant(actor=self.actor, request_id=self.request_id, **_arguments(body))
        key = {**KeySerializer(done.issued.key).data, "key": done.issued.text}
        watermark = WatermarkSerializer(done.watermark).data if done.watermark else None
        return Response(
            {
                "tenant": TenantSerializer(done.tenant).data,
                "namespace": NamespaceSerializer(done.namespace).data,
                "key": key,
                "watermark": watermark,
            },
            status=201,
        )


def _arguments(body: dict[str, Any]) -> dict[str, Any]:
    tenant, namespace, key, watermark = body["tenant"], body["namespace"], body["key"], body.get("watermark")
    return {
        "tenant": tenant["id"],
        "tenant_settings": {name: value for name, value in tenant.items() if name != "id"},
        "namespace": namespace["slug"],
        "namespace_settings": {name: value for name, value in namespace.items() if name != "slug"},
        "key_name": key["name"],
        "key_expires_at": key["expires_at"],
        "watermark": WatermarkValues(**watermark) if watermark else None,
    }
