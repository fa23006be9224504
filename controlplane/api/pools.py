"""Worker pools over REST."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_REQUIRED, required_revision
from controlplane.errors import NotFound
from controlplane.fleet import services
from controlplane.fleet.models import WorkerPool
from controlplane.tenants.roles import Capability

TRANSFER = "How workers pull KV from each other; empty = they do not."
ROWS = WorkerPool.objects.prefetch_related("models")


class PoolSerializer(serializers.Serializer[WorkerPool]):
    id = serializers.CharField(source="slug")
    name = serializers.CharField()
    models = serializers.SerializerMethodField()
    block_size = serializers.IntegerField()
    routing = serializers.ChoiceField(choices=WorkerPool.Routing.choices)
    virtual_nodes = serializers.IntegerField()
    spill_outstanding = serializers.IntegerField()
    prefill_tokens_per_s = serializers.FloatField(allow_null=True)
    tokenizer = serializers.CharField()
    kv_bytes_per_token = serializers.IntegerField(allow_null=True)
    transfer_gib_per_s = serializers.FloatField(allow_null=True)
    transfer_setup_ms = serializers.FloatField()
    transfer = serializers.CharField(help_text=TRANSFER)
    guarded = serializers.BooleanField(help_text="Its workers run the worker guard; requests to them carry proofs.")
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_models(self, pool: WorkerPool) -> list[str]:
        return [model.name for model in pool.models.all()]


class PoolChange(StrictSerializer):
    name = Text(max_length=200, required=False, allow_blank=True)
    models = serializers.ListField(child=Text(max_length=200), required=False, max_length=64)
    block_size = serializers.IntegerField(required=False, min_value=1, max_value=4096)
    routing = serializers.ChoiceField(choices=WorkerPool.Routing.choices, required=False)
    virtual_nodes = serializers.IntegerField(required=False, min_value=1, max_value=1000)
    spill_outstanding = serializers.IntegerField(required=False, min_value=1, max_value=10_000)
    prefill_tokens_per_s = serializers.FloatField(required=False, allow_null=True, min_value=1, max_value=1e9)
    tokenizer = Text(
        max_length=100, required=False, allow_blank=True, help_text="Folder on the routers; empty = by text."
    )
    kv_bytes_per_token = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=2**31 - 1)
    transfer_gib_per_s = serializers.FloatField(required=False, allow_null=True, min_value=0.001, max_value=1e6)
    transfer_setup_ms = serializers.FloatField(required=False, min_value=0, max_value=60_000)
    transfer = serializers.ChoiceField(
        choices=WorkerPool.Transfer.choices, required=False, allow_blank=True, help_text=TRANSFER
    )
    guarded = serializers.BooleanField(required=False)


class PoolCreation(PoolChange):
    id = Text(max_length=48)
    models = serializers.ListField(child=Text(max_length=200), min_length=1, max_length=64)


class PoolList(ApiView):
    needs = Needs(read=Capability.FLEET_VIEW, change=Capability.FLEET_CHANGE)
    queryset = ROWS
    serializer_class = PoolSerializer

    @extend_schema(operation_id="pools_list", responses=PoolSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(ROWS.all())

    @extend_schema(operation_id="pools_create", request=PoolCreation, responses={201: PoolSerializer})
    def post(self, request: Request) -> Response:
        body = self.body(PoolCreation)
        row = services.create_pool(
            actor=self.actor, slug=body.pop("id"), models=body.pop("models"), request_id=self.request_id, **body
        )
        return shown(PoolSerializer, row, status=201)


class PoolDetail(ApiView):
    needs = Needs(read=Capability.FLEET_VIEW, change=Capability.FLEET_CHANGE)
    serializer_class = PoolSerializer

    @extend_schema(operation_id="pools_show")
    def get(self, request: Request, pool: str) -> Response:
        row = ROWS.filter(slug=pool).first()
        if row is None:
            raise NotFound(f"There is no pool {pool!r}.")
        return shown(PoolSerializer, row)

    @extend_schema(operation_id="pools_update", request=PoolChange, parameters=[IF_MATCH_REQUIRED])
    def patch(self, request: Request, pool: str) -> Response:
        revision = required_revision(request)
        body: dict[str, Any] = self.body(PoolChange)
        row = services.update_pool(
            pool, actor=self.actor, expected_revision=revision, request_id=self.request_id, **body
        )
        return shown(PoolSerializer, row)

    @extend_schema(operation_id="pools_delete", parameters=[IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, pool: str) -> Response:
        """Only a pool without workers can be deleted."""
        services.delete_pool(
            pool, actor=self.actor, expected_revision=required_revision(request), request_id=self.request_id
        )
        return Response(status=204)
