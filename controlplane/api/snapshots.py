"""Published snapshots over REST, for operators to see and routers to fetch."""

from __future__ import annotations

import logging

from django.db import DatabaseError
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.authentication import OperatorSession, PersonalTokenBearer, RouterToken
from controlplane.api.base import ApiView
from controlplane.api.problems import BodyTooLarge
from controlplane.errors import NotFound
from controlplane.snapshots.hellos import note_hello, parse_hello
from controlplane.snapshots.models import PublishedSnapshot
from controlplane.snapshots.selectors import PollState, current, poll_state, rollout
from controlplane.snapshots.services import publish_above, publish_pending
from controlplane.tenants.roles import Capability
from router.contract.hello import RouterHello

log = logging.getLogger(__name__)

HELLO_BYTES_MAX = 8 * 1024
JSON_TYPE = "application/json"
READS_FLEET = Needs(read=Capability.FLEET_VIEW)


class SignedSnapshotSerializer(serializers.Serializer[object]):
    version = serializers.IntegerField()
    epoch = serializers.IntegerField()
    created_at = serializers.FloatField(help_text="Unix seconds.")
    digest = serializers.CharField(help_text="SHA-256 of `body`.")
    body = serializers.CharField(help_text="JSON text of the policy, signed byte for byte.")
    signature = serializers.CharField()


class SnapshotHeadSerializer(serializers.Serializer[PublishedSnapshot]):
    version = serializers.IntegerField()
    epoch = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    digest = serializers.CharField()
    through_audit_id = serializers.IntegerField()


class HelloSerializer(serializers.Serializer[object]):
    router = serializers.CharField()
    boot = serializers.CharField()
    at = serializers.FloatField(help_text="Unix seconds by the router's clock.")
    snapshot_version = serializers.IntegerField(help_text="0 while the router has none.")
    epoch = serializers.IntegerField()
    admin_url = serializers.CharField(required=False)
    inflight = serializers.IntegerField(required=False)
    started_at = serializers.FloatField(required=False)
    last_error = serializers.CharField(required=False)
    digest = serializers.CharField(required=False)


class RouterSerializer(serializers.Serializer[object]):
    router = serializers.CharField()
    version = serializers.IntegerField()
    epoch = serializers.IntegerField()
    age_s = serializers.FloatField()
    state = serializers.ChoiceField(choices=["fresh", "stale"])
    inflight = serializers.IntegerField()
    admin_url = serializers.CharField()
    last_error = serializers.CharField()
    digest = serializers.CharField(help_text="SHA-256 of the policy it serves; empty while it does not say.")
    behind_s = serializers.FloatField(
        allow_null=True, help_text="For how long it has not served what is published; null = it serves that."
    )


class RolloutSerializer(serializers.Serializer[object]):
    version = serializers.IntegerField(allow_null=True)
    epoch = serializers.IntegerField(allow_null=True)
    published_at = serializers.DateTimeField(allow_null=True)
    digest = serializers.CharField()
    routers_total = serializers.IntegerField()
    routers_on_version = serializers.IntegerField()
    routers = RouterSerializer(many=True)


class SnapshotList(ApiView):
    needs = READS_FLEET
    queryset = PublishedSnapshot.objects.all()
    serializer_class = SnapshotHeadSerializer
    newest_first = True

    @extend_schema(operation_id="snapshots_list", responses=SnapshotHeadSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Heads of the snapshots that are kept, newest first."""
        return self.listed(PublishedSnapshot.objects.defer("document"))


class CurrentSnapshot(ApiView):
    authentication_classes = [RouterToken, PersonalTokenBearer, OperatorSession]
    needs = READS_FLEET
    open_to_routers = True
    serializer_class = SignedSnapshotSerializer

    @extend_schema(
        operation_id="snapshots_current",
        responses={200: SignedSnapshotSerializer, 304: None},
        parameters=[OpenApiParameter("If-None-Match", str, OpenApiParameter.HEADER)],
    )
    def get(self, request: Request) -> HttpResponseBase:
        """The signed document, byte for byte as stored; 304 when If-None-Match names it."""
        snapshot = current()
        if snapshot is None:
            raise NotFound("Nothing is published yet.")
        etag = f'"v{snapshot.version}-{snapshot.digest[:16]}"'
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")]
        if etag in known or "*" in known:
            return HttpResponse(status=304, headers={"ETag": etag})
        return HttpResponse(snapshot.document, content_type=JSON_TYPE, headers={"ETag": etag})


class SnapshotPoll(ApiView):
    """Called by each router every second or two: three queries, and a write at most every two seconds."""

    authentication_classes = [RouterToken]
    open_to_routers = True

    @extend_schema(
        operation_id="snapshots_poll", request=HelloSerializer, responses={200: SignedSnapshotSerializer, 204: None}
    )
    def post(self, request: Request) -> HttpResponseBase:
        """A router's sign of life. 204 when it serves the current snapshot, else 200 with the document."""
        data = request.stream.read(HELLO_BYTES_MAX + 1) if request.stream else b""
        if len(data) > HELLO_BYTES_MAX:
            raise BodyTooLarge(f"A hello has at most {HELLO_BYTES_MAX} bytes.")
        hello = parse_hello(data)
        state = _published(hello)
        _note(hello)
        if state is None or state.version == hello.snapshot_version:
            return HttpResponse(status=204)
        return HttpResponse(state.document, content_type=JSON_TYPE)


class Routers(ApiView):
    needs = READS_FLEET
    serializer_class = RolloutSerializer

    @extend_schema(operation_id="routers_list", responses=RolloutSerializer)
    def get(self, request: Request) -> Response:
        """How far the published snapshot has come, router by router."""
        return Response(RolloutSerializer(rollout()).data)


def _note(hello: RouterHello) -> None:
    """A sign of life that cannot be written must not keep the policy from the router that gave it."""
    try:
        note_hello(hello, timezone.now())
    except DatabaseError as error:
        log.warning("the sign of life of a router was not kept: %s", type(error).__name__)


def _published(hello: RouterHello) -> PollState | None:
    """The state to answer from, after publishing what is due: so a poll needs neither Celery nor a push."""
    state = poll_state(served_version=hello.snapshot_version)
    if hello.snapshot_version > (state.version if state else 0):
        publish_above(version=hello.snapshot_version, epoch=hello.epoch)
    elif state is None or state.is_due:
        publish_pending()
    else:
        return state
    return poll_state(served_version=hello.snapshot_version)
