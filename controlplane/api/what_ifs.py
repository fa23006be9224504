"""What if over REST: recorded traffic, simulated on another fleet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import django_filters
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs, Place
from controlplane.api.base import ApiView, StrictSerializer, Text
from controlplane.tenants.roles import Capability
from controlplane.what_if import scenarios, services
from controlplane.what_if.models import WhatIf
from controlplane.what_if.selectors import answer_for, find_what_if, what_ifs_of

SPAN_DEFAULT = timedelta(hours=1)


def _tenant_of(kwargs: Mapping[str, Any]) -> str | None:
    """None for the fleet's too: to who sees single tenants they are as absent ones (S12)."""
    return WhatIf.objects.filter(pk=kwargs["what_if_id"]).values_list("tenant", flat=True).first() or None


OF_WHAT_IF = Place(_tenant_of)


class ScenarioBody(StrictSerializer):
    """What differs from the fleet as it is. Of a tenant's own: `template_fixed` and `load_factor`."""

    name = Text(max_length=scenarios.NAME_MAX, required=False, help_text="Absent: its changes in words.")
    more_workers = serializers.IntegerField(
        min_value=-scenarios.WORKERS_MAX, max_value=scenarios.WORKERS_MAX, required=False, help_text="Negative: fewer."
    )
    kv_capacity_factor = serializers.FloatField(min_value=0.1, max_value=10, required=False)
    low = serializers.FloatField(min_value=0.05, max_value=1, required=False, help_text="Low watermark, 0…1.")
    high = serializers.FloatField(min_value=0.05, max_value=1, required=False, help_text="High watermark, 0…1.")
    policy = serializers.ChoiceField(choices=list(scenarios.POLICIES.items()), required=False)
    template_fixed = serializers.BooleanField(
        required=False, help_text="Changing text in front of prompts moved behind what they share."
    )
    shared_tier_gib = serializers.FloatField(min_value=1, max_value=100_000, required=False)
    load_factor = serializers.FloatField(min_value=0.1, max_value=10, required=False)


class WhatIfCreation(StrictSerializer):
    pool = Text(max_length=48)
    tenant = Text(max_length=48, required=False, allow_blank=True, help_text="Its own traffic; absent: the pool's.")
    namespace = Text(max_length=100, required=False, allow_blank=True, help_text="`acme/support`")
    from_at = serializers.DateTimeField(required=False, help_text="Absent: an hour before the end.")
    to_at = serializers.DateTimeField(required=False, help_text="Absent: this moment.")
    scenarios = ScenarioBody(many=True, max_length=scenarios.SCENARIOS_MAX)  # type: ignore[call-arg]
    seeds = serializers.IntegerField(min_value=1, max_value=services.SEEDS_MAX, required=False)
    good_s = serializers.FloatField(
        min_value=0.001, max_value=services.GOOD_S_MAX, required=False, help_text="A first token within it is good."
    )
    gpu_price_per_h = serializers.FloatField(min_value=0, max_value=services.PRICE_MAX, allow_null=True, required=False)
    gpu_currency = Text(max_length=3, required=False)
    gpus_per_worker = serializers.IntegerField(min_value=1, max_value=services.GPUS_MAX, required=False)


class WhatIfSerializer(serializers.Serializer[WhatIf]):
    id = serializers.IntegerField()
    pool = serializers.CharField()
    tenant = serializers.CharField(help_text="Empty: the whole pool's traffic.")
    namespace = serializers.CharField()
    from_at = serializers.DateTimeField()
    to_at = serializers.DateTimeField()
    asked_by = serializers.CharField()
    scenarios = serializers.SerializerMethodField(help_text="Their names, the fleet as it is first.")
    state = serializers.ChoiceField(choices=WhatIf.State.choices)
    simulated = serializers.IntegerField(help_text="Requests, of all scenarios and seeds.")
    to_simulate = serializers.IntegerField(help_text="0: not known yet.")
    doing = serializers.CharField(help_text="What is under way.")
    requests = serializers.IntegerField(allow_null=True, help_text="Recorded ones that are replayed.")
    gpu_currency = serializers.CharField()
    error = serializers.CharField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)

    def get_scenarios(self, row: WhatIf) -> list[str]:
        return [scenario["name"] for scenario in row.question["scenarios"]]


class WhatIfDetailSerializer(WhatIfSerializer):
    question = serializers.SerializerMethodField(
        help_text="As the simulator was asked; null: the fleet's figures are not the caller's to see."
    )
    answer = serializers.SerializerMethodField(help_text="Each scenario's figures with their extremes over the seeds.")

    @extend_schema_field(serializers.DictField(allow_null=True))
    def get_question(self, row: WhatIf) -> Any:
        return row.question if self.context.get("sees_fleet") else None

    @extend_schema_field(serializers.DictField(allow_null=True))
    def get_answer(self, row: WhatIf) -> Any:
        return answer_for(row, sees_fleet=bool(self.context.get("sees_fleet")))


class WhatIfFilter(django_filters.FilterSet):
    pool = django_filters.CharFilter()
    tenant = django_filters.CharFilter()
    state = django_filters.ChoiceFilter(choices=WhatIf.State.choices)


class _WhatIfView(ApiView):
    needs = Needs(read=Capability.WHAT_IFS_VIEW, change=Capability.WHAT_IFS_ASK)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "sees_fleet": self.access.may(Capability.FLEET_VIEW)}

    def of(self, row: WhatIf, *, status: int = 200) -> Response:
        return Response(WhatIfDetailSerializer(row, context=self.get_serializer_context()).data, status=status)


class WhatIfList(_WhatIfView):
    rows_of = "tenant"
    queryset = WhatIf.objects.all()
    serializer_class = WhatIfSerializer
    filterset_class = WhatIfFilter
    newest_first = True

    @extend_schema(operation_id="what_ifs_list", responses=WhatIfSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(what_ifs_of(self.access.tenants(Capability.WHAT_IFS_VIEW)))

    @extend_schema(operation_id="what_ifs_create", request=WhatIfCreation, responses={202: WhatIfDetailSerializer})
    def post(self, request: Request) -> Response:
        """Begun within seconds; one is simulated at a time. Ask for its progress with GET."""
        body = self.body(WhatIfCreation)
        self.require_in(body.get("tenant") or body.get("namespace", "").partition("/")[0])
        to_at = body.pop("to_at", None) or timezone.now()
        from_at = body.pop("from_at", None) or to_at - SPAN_DEFAULT
        row = services.ask(
            actor=self.actor, access=self.access, request_id=self.request_id, from_at=from_at, to_at=to_at, **body
        )
        return self.of(row, status=202)


class WhatIfDetail(_WhatIfView):
    place = OF_WHAT_IF
    serializer_class = WhatIfDetailSerializer

    @extend_schema(operation_id="what_ifs_show")
    def get(self, request: Request, what_if_id: int) -> Response:
        """Progress while it is simulated, then the answer."""
        return self.of(find_what_if(what_if_id, None))


class WhatIfCancel(_WhatIfView):
    place = OF_WHAT_IF
    serializer_class = WhatIfDetailSerializer

    @extend_schema(operation_id="what_ifs_cancel", request=None, responses=WhatIfDetailSerializer)
    def post(self, request: Request, what_if_id: int) -> Response:
        """Ends one that waits or is simulated, within seconds."""
        row = services.cancel(what_if_id, actor=self.actor, access=self.access, request_id=self.request_id)
        return self.of(row)
