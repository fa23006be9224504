"""The API's own description: OpenAPI 3.1 and a page to try it on, for signed-in operators."""

from __future__ import annotations

from django.contrib.auth.mixins import LoginRequiredMixin
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from controlplane.api.access import SIGNED_IN, CallerMay, Needs
from controlplane.api.authentication import OperatorSession, PersonalTokenBearer
from controlplane.api.converters import IN_SCHEMA

SETTINGS: dict[str, object] = {"POSTPROCESSING_HOOKS": [], "PATH_CONVERTER_OVERRIDES": IN_SCHEMA}
"""Enumerations stay where they are used; hoisted ones would need a name for each status of each noun.

docs/openapi.yaml: `manage.py spectacular --custom-settings controlplane.api.schema.SETTINGS --file docs/openapi.yaml`.
"""


class SchemaDocument(SpectacularAPIView):
    custom_settings = SETTINGS
    authentication_classes = [PersonalTokenBearer, OperatorSession]
    permission_classes = [CallerMay]
    needs = Needs(read=SIGNED_IN)


class DocsPage(LoginRequiredMixin, SpectacularSwaggerSplitView):
    """Swagger UI with its script fetched by address: the content security policy allows none inline."""

    authentication_classes = [OperatorSession]
    permission_classes = [CallerMay]
    needs = Needs(read=SIGNED_IN)
    template_name = "api/docs.html"
    url_name = "api-schema"
