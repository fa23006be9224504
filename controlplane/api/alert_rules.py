"""Alert rules, the alerts that they raised, and silences over REST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import django_filters
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.alerts import services
from controlplane.alerts.measures import CHOICES
from controlplane.alerts.models import Alert, AlertRule, Severity, Silence
from controlplane.alerts.preview import preview
from controlplane.alerts.selectors import alerts_of, rules_of, silences_of
from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.filters import MomentFilter
from controlplane.api.revisions import IF_MATCH_REQUIRED, required_revision
from controlplane.errors import NotFound
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=Capability.ALERTS_VIEW, change=Capability.ALERTS_CHANGE)
STATES = ("ok", "pending", "firing", "silenced", "unknown", "idle")


class RuleStatusSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    state = serializers.ChoiceField(choices=STATES, help_text="The gravest of its subjects; idle = it has none.")
    value = serializers.FloatField(allow_null=True, help_text="The worst that is known.")
    subjects = serializers.IntegerField(help_text="How many were looked at.")
    unknown = serializers.IntegerField(help_text="How many of them are unknown.")
    reason = serializers.CharField()


class RuleSerializer(serializers.Serializer[AlertRule]):
    slug = serializers.CharField()
    name = serializers.CharField()
    measure = serializers.ChoiceField(choices=CHOICES)
    comparison = serializers.ChoiceField(choices=AlertRule.Comparison.choices)
    threshold = serializers.FloatField()
    clear_at = serializers.FloatField(allow_null=True, help_text="It ends beyond this; null = at the threshold.")
    window_s = serializers.IntegerField()
    for_s = serializers.IntegerField()
    on_unknown = serializers.ChoiceField(choices=AlertRule.OnUnknown.choices)
    severity = serializers.ChoiceField(choices=Severity.choices)
    tenant = serializers.CharField()
    pool = serializers.CharField()
    runbook = serializers.CharField()
    runbook_url = serializers.CharField()
    enabled = serializers.BooleanField()
    revision = serializers.IntegerField()
    status = serializers.SerializerMethodField(help_text="null: not evaluated yet.")

    def get_status(self, row: AlertRule) -> dict[str, Any] | None:
        status = getattr(row, "status", None)
        return None if status is None else dict(RuleStatusSerializer(status).data)


class _RuleBody(StrictSerializer):
    window_s = serializers.IntegerField(required=False, min_value=60, max_value=86_400)
    for_s = serializers.IntegerField(required=False, min_value=0, max_value=86_400)
    clear_at = serializers.FloatField(required=False, allow_null=True)
    on_unknown = serializers.ChoiceField(choices=AlertRule.OnUnknown.choices, required=False)
    severity = serializers.ChoiceField(choices=Severity.choices, required=False)
    tenant = Text(max_length=48, required=False, allow_blank=True)
    pool = Text(max_length=48, required=False, allow_blank=True)
    runbook = Text(max_length=4000, required=False, allow_blank=True)
    runbook_url = Text(max_length=300, required=False, allow_blank=True)
    enabled = serializers.BooleanField(required=False)


class RuleCreation(_RuleBody):
    slug = Text(max_length=48)
    name = Text(max_length=120)
    measure = serializers.ChoiceField(choices=CHOICES)
    comparison = serializers.ChoiceField(choices=AlertRule.Comparison.choices)
    threshold = serializers.FloatField(help_text="Shares from 0 to 1, times in ms or s as the measure says.")


class RuleChange(_RuleBody):
    name = Text(max_length=120, required=False)
    measure = serializers.ChoiceField(choices=CHOICES, required=False)
    comparison = serializers.ChoiceField(choices=AlertRule.Comparison.choices, required=False)
    threshold = serializers.FloatField(required=False)


class RulePreviewBody(_RuleBody):
    measure = serializers.ChoiceField(choices=CHOICES)
    comparison = serializers.ChoiceField(choices=AlertRule.Comparison.choices)
    threshold = serializers.FloatField()


class EpisodeSerializer(serializers.Serializer[Any]):
    subject = serializers.CharField()
    began = serializers.DateTimeField()
    ended = serializers.DateTimeField(allow_null=True)
    worst = serializers.FloatField(allow_null=True)


class PreviewSerializer(serializers.Serializer[Any]):
    first = serializers.DateTimeField()
    step_s = serializers.IntegerField()
    values = serializers.ListField(child=serializers.FloatField(allow_null=True))
    fired = serializers.IntegerField(help_text="How often it would have fired in the last 24 h.")
    episodes = EpisodeSerializer(many=True)
    firing_s = serializers.IntegerField()
    unknown_share = serializers.FloatField()
    reason = serializers.CharField(help_text="Why nothing can be said.")


class AlertRowSerializer(serializers.Serializer[Alert]):
    id = serializers.IntegerField()
    rule = serializers.CharField(source="rule_slug")
    name = serializers.CharField()
    measure = serializers.CharField()
    severity = serializers.ChoiceField(choices=Severity.choices)
    subject = serializers.CharField()
    tenant = serializers.CharField()
    pool = serializers.CharField()
    state = serializers.ChoiceField(choices=Alert.State.choices)
    value = serializers.FloatField(allow_null=True)
    reason = serializers.CharField()
    since = serializers.DateTimeField()
    fired_at = serializers.DateTimeField(allow_null=True)
    unknown_since = serializers.DateTimeField(allow_null=True)
    resolved_at = serializers.DateTimeField(allow_null=True)
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    acknowledged_by = serializers.CharField()
    acknowledgement = serializers.CharField()


class SilenceSerializer(serializers.Serializer[Silence]):
    id = serializers.IntegerField()
    rule = serializers.CharField(source="rule_slug")
    subject = serializers.CharField()
    tenant = serializers.CharField()
    pool = serializers.CharField()
    severity = serializers.CharField()
    reason = serializers.CharField()
    created_by = serializers.CharField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    ended_by = serializers.CharField()


class SilenceCreation(StrictSerializer):
    """An empty matcher fits everything; at least one must be named."""

    rule = Text(max_length=48, required=False, allow_blank=True, default="", source="rule_slug")
    subject = Text(max_length=200, required=False, allow_blank=True, default="", help_text="A name, or one with `*`.")
    tenant = Text(max_length=48, required=False, allow_blank=True, default="")
    pool = Text(max_length=48, required=False, allow_blank=True, default="")
    severity = serializers.ChoiceField(choices=Severity.choices, required=False, allow_blank=True, default="")
    ends_at = serializers.DateTimeField()
    reason = Text(max_length=500)


class AlertAcknowledgementBody(StrictSerializer):
    reason = Text(max_length=500)


class AlertFilter(django_filters.FilterSet):
    rule = django_filters.CharFilter(field_name="rule_slug")
    subject = django_filters.CharFilter()
    tenant = django_filters.CharFilter()
    pool = django_filters.CharFilter()
    state = django_filters.ChoiceFilter(choices=Alert.State.choices)
    severity = django_filters.ChoiceFilter(choices=Severity.choices)
    open = django_filters.BooleanFilter(field_name="resolved_at", lookup_expr="isnull")
    since = MomentFilter(field_name="since", lookup_expr="gte")
    until = MomentFilter(field_name="since", lookup_expr="lt")


class SilenceFilter(django_filters.FilterSet):
    rule = django_filters.CharFilter(field_name="rule_slug")
    tenant = django_filters.CharFilter()


def _rules_tenant(kwargs: Mapping[str, Any]) -> str | None:
    """None for the fleet's own too: to a tenant's members those look absent (S12)."""
    return AlertRule.objects.filter(slug=kwargs["rule"]).values_list("tenant", flat=True).first() or None


def _alerts_tenant(kwargs: Mapping[str, Any]) -> str | None:
    return Alert.objects.filter(pk=kwargs["alert_id"]).values_list("tenant", flat=True).first() or None


class AlertRuleList(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = AlertRule.objects.all()
    serializer_class = RuleSerializer

    @extend_schema(operation_id="alert_rules_list", responses=RuleSerializer(many=True))
    def get(self, request: Request) -> Response:
        """With what the last evaluation said of each."""
        return self.listed(rules_of(None))

    @extend_schema(operation_id="alert_rules_create", request=RuleCreation, responses={201: RuleSerializer})
    def post(self, request: Request) -> Response:
        row = services.create_rule(actor=self.actor, request_id=self.request_id, **self.body(RuleCreation))
        return shown(RuleSerializer, row, status=201)


class AlertRuleDetail(ApiView):
    needs = NEEDS
    place = Place(_rules_tenant)
    serializer_class = RuleSerializer

    @extend_schema(operation_id="alert_rules_show")
    def get(self, request: Request, rule: str) -> Response:
        row = rules_of(None).filter(slug=rule).first()
        if row is None:
            raise NotFound(f"There is no alert rule {rule!r}.")
        return shown(RuleSerializer, row)

    @extend_schema(operation_id="alert_rules_update", request=RuleChange, parameters=[IF_MATCH_REQUIRED])
    def patch(self, request: Request, rule: str) -> Response:
        """What it has raised ends when its condition changes."""
        row = services.update_rule(
            rule, actor=self.actor, if_revision=required_revision(request), request_id=self.request_id,
            **self.body(RuleChange, partial=True),
        )  # fmt: skip
        return shown(RuleSerializer, row)

    @extend_schema(operation_id="alert_rules_delete", parameters=[IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, rule: str) -> Response:
        """Its past alerts stay in the history."""
        services.delete_rule(
            rule, actor=self.actor, if_revision=required_revision(request), request_id=self.request_id
        )  # fmt: skip
        return Response(status=204)


class AlertRulePreview(ApiView):
    # It reads figures, and changes nothing.
    needs = Needs(read=Capability.ALERTS_VIEW, change=Capability.ALERTS_VIEW)
    serializer_class = PreviewSerializer

    @extend_schema(operation_id="alert_rules_preview", request=RulePreviewBody, responses=PreviewSerializer)
    def post(self, request: Request) -> Response:
        """What a rule with these values would have done in the last 24 h."""
        rule = services.checked_rule("preview", self.body(RulePreviewBody))
        return Response(PreviewSerializer(asdict(preview(rule, now=timezone.now()))).data)


class AlertHistory(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = Alert.objects.all()
    serializer_class = AlertRowSerializer
    filterset_class = AlertFilter
    newest_first = True

    @extend_schema(operation_id="alert_history_list", responses=AlertRowSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first, kept for 90 days after their end; `open=true` for what goes on."""
        return self.listed(alerts_of(None))


class AlertAcknowledgement(ApiView):
    needs = NEEDS
    place = Place(_alerts_tenant)
    serializer_class = AlertRowSerializer

    @extend_schema(operation_id="alert_history_acknowledge", request=AlertAcknowledgementBody)
    def post(self, request: Request, alert_id: int) -> Response:
        """Says who has it in hand. It goes on; the bell counts it no more."""
        row = services.acknowledge_alert(
            alert_id, actor=self.actor, request_id=self.request_id, **self.body(AlertAcknowledgementBody)
        )
        return Response(AlertRowSerializer(row).data)


class SilenceList(ApiView):
    needs = NEEDS
    rows_of = "tenant"
    queryset = Silence.objects.all()
    serializer_class = SilenceSerializer
    filterset_class = SilenceFilter
    newest_first = True

    @extend_schema(operation_id="silences_list", responses=SilenceSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first; those that are over too, for 90 days."""
        return self.listed(silences_of(None))

    @extend_schema(operation_id="silences_create", request=SilenceCreation, responses={201: SilenceSerializer})
    def post(self, request: Request) -> Response:
        """From this moment until `ends_at`, 30 days at most."""
        row = services.create_silence(actor=self.actor, request_id=self.request_id, **self.body(SilenceCreation))
        return Response(SilenceSerializer(row).data, status=201)


class SilenceEnd(ApiView):
    needs = NEEDS
    serializer_class = SilenceSerializer

    @extend_schema(operation_id="silences_end", request=None)
    def post(self, request: Request, silence_id: int) -> Response:
        """What still fires is told at the next evaluation."""
        row = services.end_silence(silence_id, actor=self.actor, request_id=self.request_id)
        return Response(SilenceSerializer(row).data)
