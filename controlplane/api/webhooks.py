"""Webhooks over REST: receivers of events, what was sent to them, and sending it again."""

from __future__ import annotations

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import Needs
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.api.revisions import IF_MATCH_REQUIRED, required_revision
from controlplane.errors import NotFound
from controlplane.tenants.roles import Capability
from controlplane.webhooks import delivering, services
from controlplane.webhooks.events import PATTERNS
from controlplane.webhooks.models import Delivery, Subscription

NEEDS = Needs(read=Capability.INTEGRATIONS_VIEW, change=Capability.INTEGRATIONS_CHANGE)
EVENTS = f"Any of {', '.join(f'`{name}`' for name in PATTERNS)}."


class WebhookSerializer(serializers.Serializer[Subscription]):
    slug = serializers.CharField()
    origin = serializers.CharField(help_text="Scheme, host and port. The path may hold a secret and is not shown.")
    format = serializers.ChoiceField(choices=Subscription.Format.choices)
    events = serializers.ListField(child=serializers.CharField(), help_text=EVENTS)
    enabled = serializers.BooleanField()
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class WebhookMadeSerializer(WebhookSerializer):
    secret = serializers.CharField(help_text="Key of the signatures. Shown this once.")


class WebhookCreation(StrictSerializer):
    slug = Text(max_length=48)
    url = Text(max_length=300, help_text="Must resolve into TIDEMARK_WEBHOOK_NETWORKS.")
    events = serializers.ListField(child=Text(max_length=40), max_length=20, help_text=EVENTS)
    format = serializers.ChoiceField(choices=Subscription.Format.choices, required=False, default="tidemark")
    enabled = serializers.BooleanField(required=False, default=True)


class WebhookChange(StrictSerializer):
    url = Text(max_length=300, required=False)
    events = serializers.ListField(child=Text(max_length=40), max_length=20, required=False, help_text=EVENTS)
    format = serializers.ChoiceField(choices=Subscription.Format.choices, required=False)
    enabled = serializers.BooleanField(required=False)


class DeliverySerializer(serializers.Serializer[Delivery]):
    id = serializers.IntegerField()
    webhook = serializers.CharField(source="subscription.slug")
    event = serializers.CharField()
    payload = serializers.DictField(help_text="The event, whatever the receiver's format.")
    state = serializers.ChoiceField(choices=Delivery.State.choices, help_text="`dead` = given up, to be redelivered.")
    attempts = serializers.IntegerField()
    next_attempt_at = serializers.DateTimeField(allow_null=True)
    last_status = serializers.IntegerField(allow_null=True, help_text="HTTP status of the last answer.")
    last_error = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class DeliveryFilter(django_filters.FilterSet):
    webhook = django_filters.CharFilter(field_name="subscription__slug")
    event = django_filters.CharFilter()
    state = django_filters.ChoiceFilter(choices=Delivery.State.choices)


class WebhookList(ApiView):
    needs = NEEDS
    queryset = Subscription.objects.all()
    serializer_class = WebhookSerializer

    @extend_schema(operation_id="webhooks_list", responses=WebhookSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(Subscription.objects.all())

    @extend_schema(operation_id="webhooks_create", request=WebhookCreation, responses={201: WebhookMadeSerializer})
    def post(self, request: Request) -> Response:
        """It hears of what happens from now on. The answer holds the secret of its signatures, once."""
        made = services.create_subscription(actor=self.actor, request_id=self.request_id, **self.body(WebhookCreation))
        answer = shown(WebhookSerializer, made.subscription, status=201)
        answer.data["secret"] = made.secret
        return answer


class WebhookDetail(ApiView):
    needs = NEEDS
    serializer_class = WebhookSerializer

    @extend_schema(operation_id="webhooks_show")
    def get(self, request: Request, webhook: str) -> Response:
        row = Subscription.objects.filter(slug=webhook).first()
        if row is None:
            raise NotFound(f"There is no webhook {webhook!r}.")
        return shown(WebhookSerializer, row)

    @extend_schema(operation_id="webhooks_update", request=WebhookChange, parameters=[IF_MATCH_REQUIRED])
    def patch(self, request: Request, webhook: str) -> Response:
        """The secret stays as it is."""
        row = services.update_subscription(
            webhook, actor=self.actor, if_revision=required_revision(request), request_id=self.request_id,
            **self.body(WebhookChange, partial=True),
        )  # fmt: skip
        return shown(WebhookSerializer, row)

    @extend_schema(operation_id="webhooks_delete", parameters=[IF_MATCH_REQUIRED], responses={204: None})
    def delete(self, request: Request, webhook: str) -> Response:
        """With its deliveries."""
        services.delete_subscription(
            webhook, actor=self.actor, if_revision=required_revision(request), request_id=self.request_id
        )
        return Response(status=204)


class WebhookTest(ApiView):
    needs = NEEDS
    has_outside_effects = True
    serializer_class = DeliverySerializer

    @extend_schema(operation_id="webhooks_test", request=None, responses=DeliverySerializer)
    def post(self, request: Request, webhook: str) -> Response:
        """Send a test event, once: up to 10 s. The answer says what became of it."""
        return Response(
            DeliverySerializer(delivering.send_test(webhook, actor=self.actor, request_id=self.request_id)).data
        )


class DeliveryList(ApiView):
    needs = NEEDS
    queryset = Delivery.objects.select_related("subscription")
    serializer_class = DeliverySerializer
    filterset_class = DeliveryFilter
    newest_first = True

    @extend_schema(operation_id="webhook_deliveries_list", responses=DeliverySerializer(many=True))
    def get(self, request: Request) -> Response:
        """Newest first, kept for 30 days; `state=dead` shows what was given up."""
        return self.listed(Delivery.objects.select_related("subscription"))


class Redelivery(ApiView):
    needs = NEEDS
    serializer_class = DeliverySerializer

    @extend_schema(operation_id="webhook_deliveries_redeliver", request=None, responses={202: DeliverySerializer})
    def post(self, request: Request, delivery_id: int) -> Response:
        """A fresh round of attempts, within seconds."""
        row = delivering.redeliver(delivery_id, actor=self.actor, request_id=self.request_id)
        return Response(DeliverySerializer(row).data, status=202)
