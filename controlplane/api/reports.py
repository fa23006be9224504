"""Reports over REST: schedules, their runs with figures and files, who was told, links to share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import django_filters
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text
from controlplane.api.revisions import IF_MATCH_REQUIRED, etag_of, required_revision
from controlplane.errors import NotFound
from controlplane.reports import cron, delivering, mail, producing, services, sharing
from controlplane.reports.models import (
    Format,
    ReportDelivery,
    ReportFile,
    ReportRun,
    ReportSchedule,
    ReportShare,
    Scope,
)
from controlplane.reports.selectors import find_run, find_schedule, runs_of, schedules_of
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.REPORTS_VIEW, change=Capability.REPORTS_CHANGE)
NEXT_SHOWN = 5
CONTENT_TYPES = {"html": "text/html", "pdf": "application/pdf", "csv": "application/zip", "json": "application/json"}
FILE = {
    (200, kind): OpenApiResponse(schema, description="The file.")
    for kind, schema in (
        ("application/json", {"type": "object"}),
        ("text/html", OpenApiTypes.STR),
        ("application/pdf", OpenApiTypes.BINARY),
        ("application/zip", OpenApiTypes.BINARY),
    )
}


def _tenant_of_schedule(kwargs: Mapping[str, Any]) -> str | None:
    """None for the fleet's too: to who sees single tenants they are as absent ones (S12)."""
    row = ReportSchedule.objects.filter(pk=kwargs["schedule_id"]).first()
    return None if row is None else row.tenant or None


def _tenant_of_run(kwargs: Mapping[str, Any]) -> str | None:
    return ReportRun.objects.filter(pk=kwargs["run_id"]).values_list("tenant", flat=True).first() or None


OF_SCHEDULE, OF_RUN = Place(_tenant_of_schedule), Place(_tenant_of_run)


class RecipientSerializer(StrictSerializer):
    kind = serializers.ChoiceField(choices=["email", "webhook"])
    to = Text(max_length=254, help_text="An e-mail address, or the slug of a webhook.")


class ScheduleSerializer(serializers.Serializer[ReportSchedule]):
    id = serializers.IntegerField()
    slug = serializers.CharField()
    name = serializers.CharField()
    cron = serializers.CharField(help_text="Minute, hour, day of month, month, day of week; in `time_zone`.")
    cron_words = serializers.SerializerMethodField(help_text="The same in words.")
    time_zone = serializers.CharField()
    scope = serializers.ChoiceField(choices=Scope.choices)
    subject = serializers.CharField(help_text="Slug of the pool or tenant; empty for the fleet.")
    range_days = serializers.IntegerField()
    formats = serializers.ListField(child=serializers.ChoiceField(choices=Format.choices))
    recipients = serializers.SerializerMethodField(help_text="null: not the caller's to see.")
    gpu_hour_cost = serializers.FloatField(allow_null=True)
    currency = serializers.CharField()
    enabled = serializers.BooleanField()
    next_due_at = serializers.DateTimeField(allow_null=True)
    next_runs = serializers.SerializerMethodField(help_text=f"The next {NEXT_SHOWN} due times.")
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_cron_words(self, row: ReportSchedule) -> str:
        return cron.in_words(row.cron)

    @extend_schema_field(RecipientSerializer(many=True, allow_null=True))
    def get_recipients(self, row: ReportSchedule) -> list[dict[str, str]] | None:
        return row.recipients if self.context.get("may_change") else None

    def get_next_runs(self, row: ReportSchedule) -> list[datetime]:
        if not row.enabled:
            return []
        return cron.following(row.cron, row.time_zone, after=timezone.now(), count=NEXT_SHOWN)


class ScheduleCreation(StrictSerializer):
    slug = Text(max_length=48)
    name = Text(max_length=200, required=False)
    cron = Text(max_length=100, help_text="Five fields, at most once an hour: `0 8 * * 1`.")
    time_zone = Text(max_length=50, required=False, help_text="IANA name; UTC when absent.")
    scope = serializers.ChoiceField(choices=Scope.choices, required=False)
    subject = Text(max_length=48, required=False, allow_blank=True)
    range_days = serializers.IntegerField(min_value=1, max_value=365, required=False)
    formats = serializers.ListField(
        child=serializers.ChoiceField(choices=Format.choices), max_length=10, required=False
    )
    recipients = RecipientSerializer(many=True, required=False, max_length=services.RECIPIENTS_MAX)  # type: ignore[call-arg]
    gpu_hour_cost = serializers.FloatField(min_value=0, max_value=100_000, allow_null=True, required=False)
    currency = Text(max_length=3, required=False)
    enabled = serializers.BooleanField(required=False)


class ScheduleChange(ScheduleCreation):
    slug = None  # type: ignore[assignment]
    cron = Text(max_length=100, required=False, help_text="Five fields, at most once an hour: `0 8 * * 1`.")


class FileSerializer(serializers.Serializer[ReportFile]):
    format = serializers.ChoiceField(choices=Format.choices)
    bytes = serializers.IntegerField()
    error = serializers.CharField(help_text="Why it could not be made; empty where it is there.")


class RunSerializer(serializers.Serializer[ReportRun]):
    id = serializers.IntegerField()
    schedule = serializers.CharField(source="schedule.slug")
    name = serializers.CharField(source="settings.name")
    scope = serializers.CharField(source="settings.scope")
    subject = serializers.CharField(source="settings.subject")
    due_at = serializers.DateTimeField(allow_null=True, help_text="null: somebody asked for it.")
    missed = serializers.ListField(
        child=serializers.CharField(), help_text="Earlier due times that passed while nothing ran."
    )
    asked_by = serializers.CharField()
    from_at = serializers.DateTimeField()
    to_at = serializers.DateTimeField()
    state = serializers.ChoiceField(choices=ReportRun.State.choices)
    step = serializers.CharField(help_text="What is being made.")
    step_number = serializers.IntegerField()
    steps = serializers.SerializerMethodField()
    attempts = serializers.IntegerField()
    error = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)

    def get_steps(self, row: ReportRun) -> int:
        return len(producing.STEPS)


class ToldSerializer(serializers.Serializer[delivering.Told]):
    kind = serializers.ChoiceField(choices=["email", "webhook"])
    id = serializers.IntegerField(help_text="Of the report's or the webhook's delivery; 0: there is none.")
    to = serializers.CharField()
    state = serializers.ChoiceField(choices=ReportDelivery.State.choices)
    attempts = serializers.IntegerField()
    error = serializers.CharField()
    next_attempt_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)


class RunDetailSerializer(RunSerializer):
    files = FileSerializer(many=True)
    deliveries = serializers.SerializerMethodField(help_text="null: not the caller's to see.")
    figures = serializers.DictField(allow_null=True, help_text="Frozen when it is done.")

    @extend_schema_field(ToldSerializer(many=True, allow_null=True))
    def get_deliveries(self, row: ReportRun) -> Any:
        return (
            [ToldSerializer(told).data for told in delivering.told_of(row)] if self.context.get("may_change") else None
        )


class ShareSerializer(serializers.Serializer[ReportShare]):
    id = serializers.IntegerField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)
    opened = serializers.IntegerField()
    last_opened_at = serializers.DateTimeField(allow_null=True)


class ShareMadeSerializer(ShareSerializer):
    path = serializers.CharField(help_text="The link, below this server's address. Shown this once.")


class ShareCreation(StrictSerializer):
    days = serializers.IntegerField(min_value=1, max_value=sharing.DAYS_MAX)


class RunFilter(django_filters.FilterSet):
    schedule = django_filters.CharFilter(field_name="schedule__slug")
    state = django_filters.ChoiceFilter(choices=ReportRun.State.choices)


class _ReportView(ApiView):
    needs = NEEDS

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "may_change": self.access.may(Capability.REPORTS_CHANGE)}

    def of(self, serializer: type[serializers.Serializer[Any]], row: Any, *, status: int = 200) -> Response:
        """As `base.shown`, for serializers that show more to who may change."""
        revision = getattr(row, "revision", None)
        headers = {} if revision is None else {"ETag": etag_of(revision)}
        return Response(serializer(row, context=self.get_serializer_context()).data, status=status, headers=headers)


class ScheduleList(_ReportView):
    rows_of = "subject"
    queryset = ReportSchedule.objects.all()
    serializer_class = ScheduleSerializer

    @extend_schema(operation_id="report_schedules_list", responses=ScheduleSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(schedules_of(self.access.tenants(Capability.REPORTS_VIEW)))

    @extend_schema(
        operation_id="report_schedules_create", request=ScheduleCreation, responses={201: ScheduleSerializer}
    )
    def post(self, request: Request) -> Response:
        """First due at the next time that the expression names."""
        self.require_in("")
        body = self.body(ScheduleCreation)
        row = services.create_schedule(actor=self.actor, request_id=self.request_id, **body)
        return self.of(ScheduleSerializer, row, status=201)


class ScheduleDetail(_ReportView):
    place = OF_SCHEDULE
    serializer_class = ScheduleSerializer

    @extend_schema(operation_id="report_schedules_show")
    def get(self, request: Request, schedule_id: int) -> Response:
        return self.of(ScheduleSerializer, find_schedule(schedule_id, None))

    @extend_schema(operation_id="report_schedules_update", request=ScheduleChange, parameters=[IF_MATCH_REQUIRED])
    def patch(self, request: Request, schedule_id: int) -> Response:
        """What is under way goes on as it began."""
        self.require_in("")
        row = services.update_schedule(
            schedule_id, actor=self.actor, if_revision=required_revision(request), request_id=self.request_id,
            **self.body(ScheduleChange, partial=True),
        )  # fmt: skip
        return self.of(ScheduleSerializer, row)

    @extend_schema(operation_id="report_schedules_delete", parameters=[IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, schedule_id: int) -> Response:
        """With its reports, their files and links."""
        self.require_in("")
        services.delete_schedule(
            schedule_id, actor=self.actor, if_revision=required_revision(request), request_id=self.request_id
        )
        return Response(status=204)


class ScheduleRun(_ReportView):
    place = OF_SCHEDULE
    serializer_class = RunSerializer

    @extend_schema(operation_id="report_schedules_run", request=None, responses={202: RunSerializer})
    def post(self, request: Request, schedule_id: int) -> Response:
        """A report that ends at this moment; it is begun within seconds."""
        run = services.run_now(schedule_id, actor=self.actor, request_id=self.request_id)
        return self.of(RunSerializer, run, status=202)


class RunList(_ReportView):
    rows_of = "tenant"
    queryset = ReportRun.objects.all()
    serializer_class = RunSerializer
    filterset_class = RunFilter
    newest_first = True

    @extend_schema(operation_id="report_runs_list", responses=RunSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(runs_of(self.access.tenants(Capability.REPORTS_VIEW)))


class RunDetail(_ReportView):
    place = OF_RUN
    serializer_class = RunDetailSerializer

    @extend_schema(operation_id="report_runs_show")
    def get(self, request: Request, run_id: int) -> Response:
        """Progress while it is made, then the figures."""
        return self.of(RunDetailSerializer, find_run(run_id, None))


class RunFile(_ReportView):
    place = OF_RUN

    @extend_schema(operation_id="report_runs_file", responses=FILE)
    def get(self, request: Request, run_id: int, format: str) -> HttpResponse:
        run = find_run(run_id, None)
        file = run.files.filter(format=format).exclude(content=None).first()
        if file is None:
            raise NotFound("There is no such file.")
        headers = {"Content-Disposition": f'attachment; filename="{mail.file_name(run, format)}"'}
        return HttpResponse(bytes(file.content or b""), content_type=CONTENT_TYPES[format], headers=headers)


class RunRetry(_ReportView):
    place = OF_RUN
    serializer_class = RunSerializer

    @extend_schema(operation_id="report_runs_retry", request=None, responses={202: RunSerializer})
    def post(self, request: Request, run_id: int) -> Response:
        """One that was given up is made afresh."""
        row = producing.retry(run_id, actor=self.actor, request_id=self.request_id)
        return self.of(RunSerializer, row, status=202)


class ShareList(_ReportView):
    place = OF_RUN
    queryset = ReportShare.objects.all()
    serializer_class = ShareSerializer

    @extend_schema(operation_id="report_shares_list", responses=ShareSerializer(many=True))
    def get(self, request: Request, run_id: int) -> Response:
        return self.listed(find_run(run_id, None).shares.all())

    @extend_schema(operation_id="report_shares_create", request=ShareCreation, responses={201: ShareMadeSerializer})
    def post(self, request: Request, run_id: int) -> Response:
        """A link that shows this report without signing in, until it ends or is revoked."""
        days = self.body(ShareCreation)["days"]
        made = sharing.share(run_id, actor=self.actor, days=days, request_id=self.request_id)
        answer = self.of(ShareSerializer, made.share, status=201)
        answer.data["path"] = made.path
        return answer


class ShareRevocation(_ReportView):
    serializer_class = ShareSerializer

    @extend_schema(operation_id="report_shares_revoke", request=None, responses=ShareSerializer)
    def post(self, request: Request, share_id: int) -> Response:
        row = sharing.revoke_share(share_id, actor=self.actor, request_id=self.request_id)
        return self.of(ShareSerializer, row)


class DeliveryRepeat(_ReportView):
    serializer_class = ToldSerializer

    @extend_schema(operation_id="report_deliveries_redeliver", request=None, responses={202: ToldSerializer})
    def post(self, request: Request, delivery_id: int) -> Response:
        """A fresh round of attempts by mail, within seconds. Webhooks: `/webhook-deliveries/{id}/redeliver`."""
        row = delivering.redeliver(delivery_id, actor=self.actor, request_id=self.request_id)
        return self.of(ToldSerializer, delivering.told_by_mail(row), status=202)
