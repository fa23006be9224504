"""One's own account over REST: what one holds, and personal tokens. Tokens cannot make or revoke tokens."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.access import SIGNED_IN, Needs
from controlplane.api.authentication import OperatorSession
from controlplane.api.base import ApiView, StrictSerializer, Text, shown
from controlplane.tenants import token_services
from controlplane.tenants.models import PersonalToken
from controlplane.tenants.roles import Capability

NEEDS = Needs(read=SIGNED_IN, change=SIGNED_IN)
CAPABILITIES = [item.value for item in Capability]


class TokenSerializer(serializers.Serializer[PersonalToken]):
    id = serializers.CharField(source="token_id")
    name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(allow_null=True, help_text="To the minute.")
    revoked_at = serializers.DateTimeField(allow_null=True)


class IssuedTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="The whole token. It is shown this once and cannot be shown again.")


class TokenCreation(StrictSerializer):
    name = Text(max_length=200)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=CAPABILITIES), min_length=1, max_length=50)
    expires_at = serializers.DateTimeField(help_text="Within the next 366 days.")


class NoBody(StrictSerializer):
    pass


class MyAccessSerializer(serializers.Serializer[object]):
    user = serializers.CharField()
    everywhere = serializers.ListField(child=serializers.CharField(), help_text="Capabilities in the whole fleet.")
    tenants = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()), help_text="Tenant → capabilities in it alone."
    )


class MyAccess(ApiView):
    needs = NEEDS
    serializer_class = MyAccessSerializer

    @extend_schema(operation_id="my_access_show")
    def get(self, request: Request) -> Response:
        """What the caller holds: the user's roles, within the scopes of the token."""
        access = self.access
        tenants = {slug: sorted(held) for slug, held in access.by_tenant.items()}
        return Response({"user": self.user.get_username(), "everywhere": sorted(access.fleet), "tenants": tenants})


class MyTokens(ApiView):
    authentication_classes = [OperatorSession]
    needs = NEEDS
    queryset = PersonalToken.objects.all()
    serializer_class = TokenSerializer
    newest_first = True

    @extend_schema(operation_id="my_tokens_list", responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        return self.listed(PersonalToken.objects.filter(user=self.user))

    @extend_schema(operation_id="my_tokens_issue", request=TokenCreation, responses={201: IssuedTokenSerializer})
    def post(self, request: Request) -> Response:
        """A token for `Authorization: Bearer`, with some of the capabilities that you hold."""
        body = self.body(TokenCreation)
        issued = token_services.issue_token(actor=self.actor, user=self.user, request_id=self.request_id, **body)
        return Response({**TokenSerializer(issued.token).data, "token": issued.text}, status=201)


class MyTokenRevoke(ApiView):
    authentication_classes = [OperatorSession]
    needs = NEEDS
    serializer_class = TokenSerializer

    @extend_schema(operation_id="my_tokens_revoke", request=NoBody)
    def post(self, request: Request, token_id: str) -> Response:
        """Final. Repeating it changes nothing."""
        self.body(NoBody)
        row = token_services.revoke_token(
            actor=self.actor, user=self.user, token_id=token_id, request_id=self.request_id
        )
        return shown(TokenSerializer, row)
