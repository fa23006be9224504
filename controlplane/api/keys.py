"""API keys over REST. The whole key is in the answer to its creation, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.errors import NotFound
from controlplane.namespaces import key_services
from controlplane.namespaces.models import ApiKey
from controlplane.tenants.roles import Capability

ROWS = ApiKey.objects.select_related("namespace__tenant")
NEEDS = Needs(read=Capability.KEYS_VIEW, change=Capability.KEYS_CHANGE)


def _place(kwargs: Mapping[str, Any]) -> str | None:
    return ApiKey.objects.filter(key_id=kwargs["key_id"]).values_list("namespace__tenant__slug", flat=True).first()


class KeySerializer(serializers.Serializer[ApiKey]):
    id = serializers.CharField(source="key_id")
    namespace = serializers.CharField(source="namespace.namespace_id")
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=ApiKey.KeyStatus.choices)
    expires_at = serializers.DateTimeField(allow_null=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=ApiKey.KeyScope.choices))
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)


class IssuedKeySerializer(KeySerializer):
    key = serializers.CharField(help_text="The whole key. It is shown this once and cannot be shown again.")


class KeyCreation(StrictSerializer):
    namespace = serializers.RegexField(r"^[a-z0-9-]{1,48}/[a-z0-9-]{1,48}$", help_text="`<tenant>/<namespace>`")
    name = Text(max_length=200)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=ApiKey.KeyScope.choices),
        required=False,
        min_length=1,
        max_length=8,
        help_text="`inference`, the default, and beside it `explain`: answers then say how they were routed.",
    )


class KeyRotation(StrictSerializer):
    overlap_s = serializers.FloatField(
        required=False,
        min_value=0,
        max_value=key_services.OVERLAP_MAX_S,
        default=key_services.OVERLAP_DEFAULT_S,
        help_text="Seconds for which the rotated key goes on working; 0 ends it at once.",
    )
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class KeyRevocation(StrictSerializer):
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class KeyFilter(django_filters.FilterSet):
    namespace = django_filters.CharFilter(method="of_namespace", label="`<tenant>/<namespace>`")
    tenant = django_filters.CharFilter(field_name="namespace__tenant__slug")
    status = django_filters.ChoiceFilter(choices=ApiKey.KeyStatus.choices)

    def of_namespace(self, rows: QuerySet[ApiKey], name: str, value: str) -> QuerySet[ApiKey]:
        tenant, _, slug = value.partition("/")
        return rows.filter(namespace__tenant__slug=tenant, namespace__slug=slug)


class _KeyMaker(ApiView):
    def require_scopes(self, scopes: Sequence[str]) -> None:
        """`explain` tells where requests go: a key for operators, not one that a tenant gives itself (S6)."""
        if ApiKey.KeyScope.EXPLAIN in scopes:
            self.require_in("", Capability.REQUESTS_VIEW)


class KeyList(_KeyMaker):
    needs = NEEDS
    rows_of = "namespace__tenant__slug"
    queryset = ROWS
    serializer_class = KeySerializer
    filterset_class = KeyFilter

    @extend_schema(operation_id="keys_list", responses=KeySerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())

    @extend_schema(operation_id="keys_issue", request=KeyCreation, responses={201: IssuedKeySerializer})
    def post(self, request: Request) -> Response:
        body = self.body(KeyCreation)
        self.require_in(body["namespace"].partition("/")[0])
        self.require_scopes(body.get("scopes", ()))
        issued = key_services.issue_key(actor=self.actor, request_id=self.request_id, **body)
        return Response({**KeySerializer(issued.key).data, "key": issued.text}, status=201)


class KeyDetail(ApiView):
    needs = NEEDS
    place = Place(_place)
    serializer_class = KeySerializer

    @extend_schema(operation_id="keys_show")
    def get(self, request: Request, key_id: str) -> Response:
        row = ROWS.filter(key_id=key_id).first()
        if row is None:
            raise NotFound("There is no such key.")
        return shown(KeySerializer, row)


class KeyRotate(_KeyMaker):
    needs = NEEDS
    place = Place(_place)
    serializer_class = IssuedKeySerializer

    @extend_schema(operation_id="keys_rotate", request=KeyRotation, responses={201: IssuedKeySerializer})
    def post(self, request: Request, key_id: str) -> Response:
        """A successor with the same name, scopes and expiry. The key itself ends after the overlap."""
        body = self.body(KeyRotation)
        key = ROWS.filter(key_id=key_id).first()
        if key is not None:
            self.require_scopes(key.scopes)
        issued = key_services.rotate_key(actor=self.actor, key_id=key_id, request_id=self.request_id, **body)
        return Response({**KeySerializer(issued.key).data, "key": issued.text}, status=201)


class KeyRevoke(ApiView):
    needs = Needs(read=Capability.KEYS_VIEW, change=Capability.ACCESS_REVOKE)
    place = Place(_place)
    serializer_class = KeySerializer

    @extend_schema(operation_id="keys_revoke", request=KeyRevocation)
    def post(self, request: Request, key_id: str) -> Response:
        """Final. Repeating it changes nothing."""
        body = self.body(KeyRevocation)
        row = key_services.revoke_key(
            actor=self.actor, key_id=key_id, reason=body["reason"], request_id=self.request_id
        )
        return shown(KeySerializer, row)
