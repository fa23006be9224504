"""Revocations over REST: taking something away for good, and how far that has come, router by router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import django_filters
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text
from controlplane.errors import Conflict, NotFound
from controlplane.fleet.services import revoke_model
from controlplane.namespaces.key_services import revoke_key
from controlplane.namespaces.models import ApiKey
from controlplane.namespaces.services import set_namespace_status
from controlplane.revocations.models import Revocation
from controlplane.revocations.selectors import WORDING, RevocationSeen, seen
from controlplane.snapshots.selectors import last_seen
from controlplane.tenants.models import Status
from controlplane.tenants.roles import Capability
from controlplane.tenants.services import set_tenant_status

ROWS = Revocation.objects.prefetch_related("acks")
NEEDS = Needs(read=Capability.ISOLATION_VIEW, change=Capability.ACCESS_REVOKE)
SUBJECT_MAX = 260


class AckSerializer(serializers.Serializer[Any]):
    router = serializers.CharField()
    state = serializers.ChoiceField(
        choices=["acknowledged", "pending", "lease_over", "silent"],
        help_text="`lease_over`: cut off, and stopped by itself. `silent`: cut off, and may go on serving.",
    )
    at = serializers.DateTimeField(allow_null=True)
    ms = serializers.FloatField(allow_null=True, help_text="From the revocation to `at`.")
    way = serializers.CharField(help_text="`direct`, `poll`, or empty.")


class RevocationSerializer(serializers.Serializer[Any]):
    epoch = serializers.IntegerField(source="row.epoch")
    kind = serializers.ChoiceField(choices=Revocation.Kind.choices, source="row.kind")
    subject = serializers.CharField(source="row.subject")
    tenant = serializers.CharField(source="row.tenant", help_text="Empty for a model.")
    retired = serializers.IntegerField(source="row.retired", help_text="The generation that ended; 0 = none did.")
    reason = serializers.CharField(source="row.reason")
    actor = serializers.CharField(source="row.actor")
    audit_id = serializers.IntegerField(source="row.audit_id")
    created_at = serializers.DateTimeField(source="row.created_at")
    state = serializers.ChoiceField(choices=["pending", "effective"])
    effect = serializers.SerializerMethodField()
    ms = serializers.FloatField(allow_null=True, help_text="Until the last router; null while one is outstanding.")
    routers_settled = serializers.IntegerField()
    routers = AckSerializer(many=True)

    def get_effect(self, revocation: RevocationSeen) -> str:
        return WORDING


class RevocationCreation(StrictSerializer):
    kind = serializers.ChoiceField(choices=Revocation.Kind.choices)
    subject = Text(
        max_length=SUBJECT_MAX, help_text="Key id, `<tenant>/<namespace>`, `<tenant>` or `<pool>:<model name>`."
    )
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class RevocationFilter(django_filters.FilterSet):
    kind = django_filters.ChoiceFilter(choices=Revocation.Kind.choices)
    subject = django_filters.CharFilter()
    tenant = django_filters.CharFilter()


class RevocationList(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = Revocation.objects.all()
    serializer_class = RevocationSerializer
    filterset_class = RevocationFilter
    newest_first = True

    @extend_schema(operation_id="revocations_list", responses=RevocationSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.visible(ROWS.all())))
        return self.get_paginated_response(RevocationSerializer(_seen(page or []), many=True).data)

    @extend_schema(operation_id="revocations_create", request=RevocationCreation, responses={201: RevocationSerializer})
    def post(self, request: Request) -> Response:
        """Final. What is revoked already is answered with its revocation; of a model, the next revision ends too."""
        body = self.body(RevocationCreation)
        _REVOKE[body["kind"]](self, body["subject"], body["reason"])
        row = ROWS.filter(kind=body["kind"], subject=body["subject"]).order_by("-epoch").first()
        if row is None:
            raise Conflict("It was revoked before revocations were kept.")
        return Response(RevocationSerializer(_seen([row])[0]).data, status=201)


def _tenant_of(kwargs: Mapping[str, Any]) -> str | None:
    return Revocation.objects.filter(epoch=kwargs["epoch"]).values_list("tenant", flat=True).first()


class RevocationDetail(ApiView):
    needs = NEEDS
    place = Place(_tenant_of)
    serializer_class = RevocationSerializer

    @extend_schema(operation_id="revocations_show")
    def get(self, request: Request, epoch: int) -> Response:
        row = ROWS.filter(epoch=epoch).first()
        if row is None:
            raise NotFound("There is no such revocation.")
        return Response(RevocationSerializer(_seen([row])[0]).data)


def _seen(rows: Sequence[Revocation]) -> list[RevocationSeen]:
    now = timezone.now()
    return seen(rows, last_seen(now), now)


def _revoke_key(view: ApiView, subject: str, reason: str) -> None:
    tenant = ApiKey.objects.filter(key_id=subject).values_list("namespace__tenant__slug", flat=True).first()
    if tenant is None:
        raise NotFound("There is no such key.")
    view.require_in(tenant)
    revoke_key(actor=view.actor, key_id=subject, reason=reason, request_id=view.request_id)


def _revoke_namespace(view: ApiView, subject: str, reason: str) -> None:
    view.require_in(subject.partition("/")[0])
    set_namespace_status(
        actor=view.actor, namespace=subject, status=Status.REVOKED, reason=reason, request_id=view.request_id
    )


def _revoke_tenant(view: ApiView, subject: str, reason: str) -> None:
    view.require_in(subject, Capability.TENANTS_REVOKE)
    set_tenant_status(
        actor=view.actor, tenant=subject, status=Status.REVOKED, reason=reason, request_id=view.request_id
    )


def _revoke_model(view: ApiView, subject: str, reason: str) -> None:
    view.require_in("")
    pool, _, model = subject.partition(":")
    revoke_model(actor=view.actor, pool=pool, model=model, reason=reason, request_id=view.request_id)


_REVOKE = {"key": _revoke_key, "namespace": _revoke_namespace, "tenant": _revoke_tenant, "model": _revoke_model}
