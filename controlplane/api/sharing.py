"""Who shares cached prefixes, over REST: proposing it, ending it, trust groups. Approvals are change requests."""

from __future__ import annotations

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, tenant_in
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.changes import ChangeRequestSerializer
from controlplane.api.namespaces import NamespaceSerializer
from controlplane.api.revisions import IF_MATCH_OPTIONAL, optional_revision
from controlplane.api.templates import VersionSerializer
from controlplane.errors import NotFound
from controlplane.namespaces import sharing_services
from controlplane.namespaces.models import CacheNamespace, TrustGroup
from controlplane.prompts import public_services
from controlplane.tenants.roles import Capability

ROWS = TrustGroup.objects.prefetch_related("namespaces__tenant")
NEEDS = Needs(read=Capability.ISOLATION_VIEW, change=Capability.SHARING_CHANGE)


class SharingBody(StrictSerializer):
    isolation = serializers.ChoiceField(choices=CacheNamespace.Isolation.choices)
    project = Text(max_length=48, required=False, allow_blank=True, default="")
    trust_group = Text(max_length=48, required=False, allow_blank=True, default="")
    reason = Text(max_length=500)


class TrustGroupSerializer(serializers.Serializer[TrustGroup]):
    id = serializers.CharField(source="slug")
    name = serializers.CharField()
    generation = serializers.IntegerField()
    generation_at = serializers.DateTimeField()
    dissolved_at = serializers.DateTimeField(allow_null=True)
    members = serializers.SerializerMethodField()
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_members(self, group: TrustGroup) -> list[str]:
        return sorted(namespace.namespace_id for namespace in group.namespaces.all())


class TrustGroupCreation(StrictSerializer):
    id = Text(max_length=48)
    name = Text(max_length=200, required=False, allow_blank=True, default="")


class Reason(StrictSerializer):
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class TrustGroupFilter(django_filters.FilterSet):
    dissolved = django_filters.BooleanFilter(field_name="dissolved_at", lookup_expr="isnull", exclude=True)


class NamespaceSharing(ApiView):
    needs = Needs(read=Capability.NAMESPACES_VIEW, change=Capability.SHARING_CHANGE)
    place = tenant_in("namespace")
    serializer_class = NamespaceSerializer

    @extend_schema(
        operation_id="namespaces_share",
        request=SharingBody,
        parameters=[IF_MATCH_OPTIONAL],
        responses={
            200: NamespaceSerializer,
            202: ChangeRequestSerializer,
        },
    )
    def post(self, request: Request, namespace: str) -> Response:
        """Sharing is proposed: 202 with the change request for another person. `private` holds at once: 200."""
        body = self.body(SharingBody)
        if body["isolation"] == CacheNamespace.Isolation.PRIVATE:
            row = sharing_services.make_private(
                actor=self.actor, namespace=namespace, reason=body["reason"],
                if_revision=optional_revision(request), request_id=self.request_id,
            )  # fmt: skip
            return shown(NamespaceSerializer, row)
        change = sharing_services.propose_sharing(
            actor=self.actor, namespace=namespace, request_id=self.request_id, **body
        )
        return shown(ChangeRequestSerializer, change, status=202)


class TrustGroupList(ApiView):
    needs = NEEDS
    queryset = ROWS
    serializer_class = TrustGroupSerializer
    filterset_class = TrustGroupFilter

    @extend_schema(operation_id="trust_groups_list", responses=TrustGroupSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())

    @extend_schema(
        operation_id="trust_groups_create", request=TrustGroupCreation, responses={201: TrustGroupSerializer}
    )
    def post(self, request: Request) -> Response:
        """Empty: each member is proposed at its namespace, and approved by another person."""
        body = self.body(TrustGroupCreation)
        row = sharing_services.create_group(
            actor=self.actor, slug=body["id"], name=body["name"], request_id=self.request_id
        )
        return shown(TrustGroupSerializer, row, status=201)


class TrustGroupDetail(ApiView):
    needs = NEEDS
    serializer_class = TrustGroupSerializer

    @extend_schema(operation_id="trust_groups_show")
    def get(self, request: Request, group: str) -> Response:
        row = ROWS.filter(slug=group).first()
        if row is None:
            raise NotFound(f"There is no trust group {group!r}.")
        return shown(TrustGroupSerializer, row)


class TrustGroupDissolution(ApiView):
    needs = NEEDS
    serializer_class = TrustGroupSerializer

    @extend_schema(operation_id="trust_groups_dissolve", request=Reason, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, group: str) -> Response:
        """At once: all members are private from then on. Final."""
        body = self.body(Reason)
        row = sharing_services.dissolve_group(
            group, actor=self.actor, reason=body["reason"], if_revision=optional_revision(request),
            request_id=self.request_id,
        )  # fmt: skip
        return shown(TrustGroupSerializer, row)


class PublicityBody(StrictSerializer):
    public = serializers.BooleanField()
    reason = Text(max_length=500)


class VersionPublicity(ApiView):
    needs = Needs(read=Capability.TEMPLATES_VIEW, change=Capability.SHARING_CHANGE)
    place = tenant_in("template")
    serializer_class = VersionSerializer

    @extend_schema(
        operation_id="template_versions_public",
        request=PublicityBody,
        parameters=[IF_MATCH_OPTIONAL],
        responses={200: VersionSerializer, 202: ChangeRequestSerializer},
    )
    def post(self, request: Request, template: str, version: int) -> Response:
        """Put its static text on the allow-list: proposed (202) for another person. Withdrawn at once (200)."""
        body = self.body(PublicityBody)
        if body["public"]:
            change = public_services.propose_public(
                actor=self.actor, template=template, version=version, reason=body["reason"], request_id=self.request_id
            )
            return shown(ChangeRequestSerializer, change, status=202)
        row = public_services.withdraw_public(
            actor=self.actor, template=template, version=version, reason=body["reason"],
            if_revision=optional_revision(request), request_id=self.request_id,
        )  # fmt: skip
        return shown(VersionSerializer, row)
