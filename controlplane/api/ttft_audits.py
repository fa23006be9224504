"""TTFT audits over REST: asking for one, and what they found."""

from __future__ import annotations

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView, shown
from controlplane.api.filters import OfWorker
from controlplane.errors import NotFound
from controlplane.isolation import audit_services
from controlplane.isolation.models import CanaryResult, TtftAudit
from controlplane.tenants.roles import Capability

ROWS = TtftAudit.objects.select_related("worker__pool")
NEEDS = Needs(read=Capability.ISOLATION_VIEW, change=Capability.ISOLATION_CHANGE)


class TtftAuditSerializer(serializers.Serializer[TtftAudit]):
    id = serializers.IntegerField()
    worker = serializers.CharField(source="worker.worker_id")
    model = serializers.CharField()
    requested_by = serializers.CharField()
    requested_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True, help_text="null: under way, or lost.")
    verdict = serializers.CharField(help_text="`green`, `red`, `inconclusive`; empty while it is under way.")
    reason = serializers.CharField()
    samples = serializers.IntegerField(help_text="Of each arm.")
    auc = serializers.FloatField(
        allow_null=True, help_text="How surely a prompt that another salt has cached is faster: 0.5 = not at all."
    )
    auc_low = serializers.FloatField(allow_null=True, help_text="99 % confidence interval.")
    auc_high = serializers.FloatField(allow_null=True)
    own_auc = serializers.FloatField(allow_null=True, help_text="The same of own hits: the audit's power.")
    own_auc_low = serializers.FloatField(allow_null=True)
    own_ms = serializers.FloatField(allow_null=True, help_text="Median TTFT.")
    foreign_ms = serializers.FloatField(allow_null=True)
    unknown_ms = serializers.FloatField(allow_null=True)


class TtftAuditFilter(OfWorker):
    verdict = django_filters.ChoiceFilter(choices=CanaryResult.Verdict.choices)


class TtftAuditList(ApiView):
    needs = NEEDS
    queryset = ROWS
    serializer_class = TtftAuditSerializer
    filterset_class = TtftAuditFilter
    newest_first = True

    @extend_schema(operation_id="ttft_audits_list", responses=TtftAuditSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())


class TtftAuditDetail(ApiView):
    needs = NEEDS
    serializer_class = TtftAuditSerializer

    @extend_schema(operation_id="ttft_audits_show")
    def get(self, request: Request, audit_id: int) -> Response:
        row = ROWS.filter(pk=audit_id).first()
        if row is None:
            raise NotFound("There is no such audit.")
        return shown(TtftAuditSerializer, row)


class WorkerTtftAudit(ApiView):
    needs = NEEDS
    serializer_class = TtftAuditSerializer

    @extend_schema(operation_id="workers_ttft_audit", request=None, responses={202: TtftAuditSerializer})
    def post(self, request: Request, worker: str) -> Response:
        """Time the worker with 50 prompts an arm: it begins within a minute and takes some."""
        row = audit_services.request_audit(worker, actor=self.actor, request_id=self.request_id)
        return shown(TtftAuditSerializer, row, status=202)
