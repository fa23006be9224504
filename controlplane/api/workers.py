"""Workers over REST: added by URL, tested live, drained, removed."""

from __future__ import annotations

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_OPTIONAL, IF_MATCH_REQUIRED, optional_revision, required_revision
from controlplane.errors import NotFound
from controlplane.fleet import services
from controlplane.fleet.models import Worker
from controlplane.tenants.roles import Capability

ROWS = Worker.objects.select_related("pool")
NEEDS = Needs(read=Capability.FLEET_VIEW, change=Capability.FLEET_CHANGE)


class CheckSerializer(serializers.Serializer[dict[str, object]]):
    check = serializers.CharField()
    ok = serializers.BooleanField(allow_null=True, help_text="null: could not be found out.")
    message = serializers.CharField()


class WorkerSerializer(serializers.Serializer[Worker]):
    id = serializers.CharField(source="worker_id")
    pool = serializers.CharField(source="pool.slug")
    url = serializers.CharField()
    state = serializers.ChoiceField(choices=Worker.State.choices)
    kv_events_endpoint = serializers.CharField()
    kv_replay_endpoint = serializers.CharField()
    dcgm_url = serializers.CharField()
    facts = serializers.DictField(help_text="What the worker said of itself; a missing key is unknown.")
    test_report = CheckSerializer(many=True, allow_null=True)
    tested_at = serializers.DateTimeField(allow_null=True)
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class WorkerChange(StrictSerializer):
    url = Text(max_length=300, required=False)
    kv_events_endpoint = Text(max_length=300, required=False, allow_blank=True)
    kv_replay_endpoint = Text(max_length=300, required=False, allow_blank=True)
    dcgm_url = Text(max_length=300, required=False, allow_blank=True)


class WorkerCreation(WorkerChange):
    pool = Text(max_length=48)
    slug = Text(max_length=48)
    url = Text(max_length=300)
    state = serializers.ChoiceField(choices=Worker.State.choices, required=False, default=Worker.State.READY)


class StateChange(StrictSerializer):
    state = serializers.ChoiceField(choices=Worker.State.choices)
    reason = Text(max_length=500, required=False, allow_blank=True, default="")


class WorkerFilter(django_filters.FilterSet):
    pool = django_filters.CharFilter(field_name="pool__slug")
    state = django_filters.ChoiceFilter(choices=Worker.State.choices)


class WorkerList(ApiView):
    needs = NEEDS
    queryset = ROWS
    serializer_class = WorkerSerializer
    filterset_class = WorkerFilter

    @extend_schema(operation_id="workers_list", responses=WorkerSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())

    @extend_schema(operation_id="workers_add", request=WorkerCreation, responses={201: WorkerSerializer})
    def post(self, request: Request) -> Response:
        body = self.body(WorkerCreation)
        row = services.add_worker(actor=self.actor, request_id=self.request_id, **body)
        return shown(WorkerSerializer, row, status=201)


class WorkerDetail(ApiView):
    needs = NEEDS
    serializer_class = WorkerSerializer

    @extend_schema(operation_id="workers_show")
    def get(self, request: Request, worker: str) -> Response:
        return shown(WorkerSerializer, _find(worker))

    @extend_schema(operation_id="workers_update", request=WorkerChange, parameters=[IF_MATCH_REQUIRED])
    def patch(self, request: Request, worker: str) -> Response:
        revision = required_revision(request)
        body = self.body(WorkerChange)
        row = services.update_worker(
            worker, actor=self.actor, expected_revision=revision, request_id=self.request_id, **body
        )
        return shown(WorkerSerializer, row)

    @extend_schema(operation_id="workers_delete", parameters=[IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, worker: str) -> Response:
        services.delete_worker(
            worker, actor=self.actor, expected_revision=required_revision(request), request_id=self.request_id
        )
        return Response(status=204)


class WorkerState(ApiView):
    needs = NEEDS
    serializer_class = WorkerSerializer

    @extend_schema(operation_id="workers_set_state", request=StateChange, parameters=[IF_MATCH_OPTIONAL])
    def post(self, request: Request, worker: str) -> Response:
        """`ready`, `drain` (finishes what it has, takes nothing more) or `maintenance`."""
        body = self.body(StateChange)
        row = services.set_worker_state(
            worker,
            actor=self.actor,
            expected_revision=optional_revision(request),
            request_id=self.request_id,
            **body,
        )
        return shown(WorkerSerializer, row)


class WorkerTest(ApiView):
    has_outside_effects = True
    needs = NEEDS
    serializer_class = WorkerSerializer

    @extend_schema(operation_id="workers_test", request=None)
    def post(self, request: Request, worker: str) -> Response:
        """Ask the worker itself: reachable, caching, block size, hash algorithm, events, usage details."""
        services.test_worker(worker, actor=self.actor, request_id=self.request_id)
        return shown(WorkerSerializer, _find(worker))


def _find(worker_id: str) -> Worker:
    pool, _, slug = worker_id.partition("/")
    row = ROWS.filter(pool__slug=pool, slug=slug).first()
    if row is None:
        raise NotFound(f"There is no worker {worker_id!r}.")
    return row
