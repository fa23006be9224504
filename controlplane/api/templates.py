"""Prompt templates and their versions over REST: drafted, linted, published, compared, rendered."""

from __future__ import annotations

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, tenant_in
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_OPTIONAL, IF_MATCH_REQUIRED, optional_revision, required_revision
from controlplane.prompts import services
from controlplane.prompts.models import PromptTemplate, PromptTemplateVersion
from controlplane.prompts.segments import KINDS, SEGMENTS_MAX
from controlplane.prompts.selectors import find_template, find_version
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.TEMPLATES_VIEW, change=Capability.TEMPLATES_CHANGE)
ROWS = PromptTemplate.objects.select_related("tenant")
VERSION_ROWS = PromptTemplateVersion.objects.select_related("template__tenant")
POOL = OpenApiParameter(
    "pool", str, description="Counts in this pool's tokens and blocks; without, four bytes a token."
)


class SegmentSerializer(StrictSerializer):
    kind = serializers.ChoiceField(choices=KINDS)
    name = Text(max_length=100)
    text = Text(max_length=1_000_000, allow_blank=True, trim_whitespace=False)


class TemplateSerializer(serializers.Serializer[PromptTemplate]):
    id = serializers.CharField(source="__str__")
    tenant = serializers.CharField(source="tenant.slug")
    slug = serializers.CharField()
    name = serializers.CharField()
    created_at = serializers.DateTimeField()


class TemplateCreation(StrictSerializer):
    tenant = Text(max_length=48)
    slug = Text(max_length=48)
    name = Text(max_length=200, required=False, allow_blank=True, default="")


class VersionSerializer(serializers.Serializer[PromptTemplateVersion]):
    version = serializers.IntegerField()
    status = serializers.ChoiceField(choices=PromptTemplateVersion.VersionStatus.choices)
    segments = SegmentSerializer(many=True)
    digest = serializers.CharField(help_text="SHA-256 of the segments; empty while a draft.")
    accepted_lints = serializers.ListField(child=serializers.CharField())
    is_public = serializers.BooleanField(help_text="Its static text may be cached for all shared-public namespaces.")
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    published_at = serializers.DateTimeField(allow_null=True)


class VersionChange(StrictSerializer):
    segments = serializers.ListField(child=SegmentSerializer(), min_length=1, max_length=SEGMENTS_MAX)


class Publication(StrictSerializer):
    accept = serializers.ListField(
        child=Text(max_length=40), required=False, default=list, max_length=20,
        help_text="Codes of lint errors that may stay; the reason says why.",
    )  # fmt: skip
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class Retirement(StrictSerializer):
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class TemplateFilter(django_filters.FilterSet):
    tenant = django_filters.CharFilter(field_name="tenant__slug")


class VersionFilter(django_filters.FilterSet):
    status = django_filters.ChoiceFilter(choices=PromptTemplateVersion.VersionStatus.choices)


class TemplateList(ApiView):
    needs = NEEDS
    rows_of = "tenant__slug"
    queryset = ROWS
    serializer_class = TemplateSerializer
    filterset_class = TemplateFilter

    @extend_schema(operation_id="templates_list", responses=TemplateSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())

    @extend_schema(operation_id="templates_create", request=TemplateCreation, responses={201: TemplateSerializer})
    def post(self, request: Request) -> Response:
        body = self.body(TemplateCreation)
        self.require_in(body["tenant"])
        row = services.create_template(actor=self.actor, request_id=self.request_id, **body)
        return shown(TemplateSerializer, row, status=201)


class TemplateView(ApiView):
    """Of one template, whose address begins with its tenant."""

    needs = NEEDS
    place = tenant_in("template")


class TemplateDetail(TemplateView):
    serializer_class = TemplateSerializer

    @extend_schema(operation_id="templates_show")
    def get(self, request: Request, template: str) -> Response:
        return shown(TemplateSerializer, find_template(template))


class VersionList(TemplateView):
    queryset = VERSION_ROWS
    serializer_class = VersionSerializer
    filterset_class = VersionFilter
    newest_first = True

    @extend_schema(operation_id="template_versions_list", responses=VersionSerializer(many=True))
    def get(self, request: Request, template: str) -> Response:
        """Newest first."""
        return self.listed(VERSION_ROWS.filter(template=find_template(template)))

    @extend_schema(operation_id="template_versions_draft", request=VersionChange, responses={201: VersionSerializer})
    def post(self, request: Request, template: str) -> Response:
        """The next version, as a draft."""
        row = services.draft_version(
            actor=self.actor,
            template=template,
            segments=_segments(self.body(VersionChange)),
            request_id=self.request_id,
        )
        return shown(VersionSerializer, row, status=201)


class VersionDetail(TemplateView):
    serializer_class = VersionSerializer

    @extend_schema(operation_id="template_versions_show")
    def get(self, request: Request, template: str, version: int) -> Response:
        return shown(VersionSerializer, find_version(template, version))

    @extend_schema(operation_id="template_versions_edit", request=VersionChange, parameters=[IF_MATCH_REQUIRED])
    def put(self, request: Request, template: str, version: int) -> Response:
        """Only a draft can be edited; a published version never changes."""
        revision = required_revision(request)
        row = services.edit_draft(
            actor=self.actor,
            template=template,
            version=version,
            segments=_segments(self.body(VersionChange)),
            if_revision=revision,
            request_id=self.request_id,
        )
        return shown(VersionSerializer, row)


class VersionPublication(TemplateView):
    serializer_class = VersionSerializer

    @extend_schema(operation_id="template_versions_publish", request=Publication, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, template: str, version: int) -> Response:
        """Refused (422 `lint`) for errors of its lints, unless `accept` has their codes and `reason` says why."""
        row = services.publish_version(
            actor=self.actor,
            template=template,
            version=version,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **self.body(Publication),
        )
        return shown(VersionSerializer, row)


class VersionRetirement(TemplateView):
    serializer_class = VersionSerializer

    @extend_schema(operation_id="template_versions_retire", request=Retirement, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, template: str, version: int) -> Response:
        """Requests that name it are served without a template from then on."""
        row = services.retire_version(
            actor=self.actor,
            template=template,
            version=version,
            if_revision=optional_revision(request),
            request_id=self.request_id,
            **self.body(Retirement),
        )
        return shown(VersionSerializer, row)


def _segments(body: dict[str, Any]) -> list[Any]:
    return [dict(segment) for segment in body["segments"]]
