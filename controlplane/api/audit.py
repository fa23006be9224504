"""The audit log over REST, to read and to take away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import django_filters
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView
from controlplane.api.exports import csv_lines
from controlplane.api.filters import MomentFilter
from controlplane.audit.chain import canonical
from controlplane.audit.exported import lines_of
from controlplane.audit.models import AuditEntry
from controlplane.audit.verification import ROWS_PER_FETCH
from controlplane.namespaces.change_log import about
from controlplane.tenants.roles import Capability


class AuditSerializer(serializers.Serializer[AuditEntry]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    action = serializers.CharField()
    object_type = serializers.CharField()
    object_id = serializers.CharField()
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)
    reason = serializers.CharField()
    request_id = serializers.CharField()
    affects_routing = serializers.BooleanField()
    previous_hash = serializers.CharField()
    hash = serializers.CharField()


class AuditFilter(django_filters.FilterSet):
    actor = django_filters.CharFilter()
    action = django_filters.CharFilter()
    object_type = django_filters.CharFilter()
    object_id = django_filters.CharFilter()
    request_id = django_filters.CharFilter()
    since = MomentFilter(field_name="at", lookup_expr="gte")
    until = MomentFilter(field_name="at", lookup_expr="lt")


class AuditExportFilter(django_filters.FilterSet):
    """A stretch of the log: other filters would break the chain."""

    from_id = django_filters.NumberFilter(field_name="id", lookup_expr="gte", min_value=0, max_value=10**18)
    to_id = django_filters.NumberFilter(field_name="id", lookup_expr="lte", min_value=0, max_value=10**18)
    since = MomentFilter(field_name="at", lookup_expr="gte")
    until = MomentFilter(field_name="at", lookup_expr="lt")


LINES = "application/x-ndjson"
FILE = {
    (200, "text/csv"): {"type": "string"},
    (200, LINES): {"type": "string", "description": "One JSON object a line."},
}


class AuditList(ApiView):
    needs = Needs(read=Capability.AUDIT_VIEW)
    rows_of = "tenant"  # told by what an entry is about: `visible`
    queryset = AuditEntry.objects.all()
    serializer_class = AuditSerializer
    filterset_class = AuditFilter
    newest_first = True

    @extend_schema(operation_id="audit_list", responses=AuditSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first. Who holds it in single tenants sees entries about what belongs to those."""
        return self.listed(AuditEntry.objects.all())

    def visible(self, rows: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        tenants = self.access.tenants(Capability.AUDIT_VIEW)
        return rows if tenants is None else rows.filter(about(tenants))


class AuditExport(ApiView):
    """Of the whole log: what is about one tenant has gaps, which nobody could tell from cuts."""

    needs = Needs(read=Capability.AUDIT_VIEW)
    serializer_class = AuditSerializer
    filterset_class = AuditExportFilter
    pagination_class = None

    @extend_schema(operation_id="audit_export", responses=FILE)
    def get(self, request: Request, form: str) -> StreamingHttpResponse:
        """`audit.jsonl` or `audit.csv`, oldest first, with the hashes that chain the entries.

        Each line's `entry` is the text that was hashed: hash = SHA-256(previous_hash + entry). An export to the end of
        the log ends with its signed head. `tidemark verify-audit FILE` checks such a file.
        """
        rows = self.filter_queryset(AuditEntry.objects.order_by("id"))
        entries = rows.iterator(chunk_size=ROWS_PER_FETCH)
        to_the_end = not set(request.query_params) & {"until", "to_id"}
        content = lines_of(entries, with_head=to_the_end) if form == "jsonl" else csv_of(entries)
        kind = LINES if form == "jsonl" else "text/csv; charset=utf-8"
        headers = {"Content-Disposition": f'attachment; filename="audit.{form}"', "Cache-Control": "no-store"}
        return StreamingHttpResponse(content, content_type=kind, headers=headers)


def csv_of(entries: Iterable[AuditEntry]) -> Iterator[bytes]:
    """`canonical` is the text that was hashed; the columns before it are for people."""
    shown = ("id", "at", "actor", "action", "object_type", "object_id", "reason", "request_id")
    columns = [*shown, "canonical", "previous_hash", "hash"]
    rows = (
        [*(str(getattr(entry, name)) for name in shown), canonical(entry).decode(), entry.previous_hash, entry.hash]
        for entry in entries
    )
    return csv_lines(columns, rows)
