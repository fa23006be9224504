"""Calls made from the schema, good and bad, with and without credentials: no server error, no answer it does not name.

`TIDEMARK_FUZZ_EXAMPLES=500 pytest tests/identity/test_schema_holds.py` looks longer than the suite has time for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.api.schema import SETTINGS
from controlplane.snapshots.services import publish_pending
from controlplane.tenants.models import User
from controlplane.tenants.roles import Capability
from controlplane.tenants.token_services import issue_token
from tests.identity.world import CHANGE_REQUESTS, KEYS, MEMBERS, make_world

EXAMPLES = int(os.environ.get("TIDEMARK_FUZZ_EXAMPLES", "4"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REAL = {
    "tenant": ["acme"],
    "namespace": ["acme/support"],
    "key_id": [KEYS["acme"]],
    "pool": ["llama"],
    "worker": ["llama/w1"],
    "scope": ["global", "pool:llama", "namespace:acme/support"],
    "change_id": [CHANGE_REQUESTS["acme"]],
    "member_id": [MEMBERS["acme"]],
    "number": [1],
}
"""Names of path arguments → objects that exist: chosen half the time."""
NEVER = {"workers_test", "workers_canary"}
"""Calls that would reach out to a worker."""


def _schema() -> Any:  # Any: schemathesis' type of a loaded schema is not public
    from drf_spectacular.generators import SchemaGenerator
    from drf_spectacular.settings import patched_settings

    with patched_settings(SETTINGS):
        document = SchemaGenerator().get_schema(request=None, public=True)
    schema = schemathesis.openapi.from_dict(document)
    schema.app = get_wsgi_application()
    return schema


OPERATIONS = {}


def _operations() -> dict[str, Any]:
    if not OPERATIONS:
        for result in _schema().get_all_operations():
            operation = result.ok()
            name = operation.definition.raw["operationId"]
            if name not in NEVER:
                OPERATIONS[name] = operation
    return OPERATIONS


@pytest.fixture(scope="module")
def bearer(django_db_setup, django_db_blocker) -> Iterator[str]:
    with django_db_blocker.unblock(), transaction.atomic():
        make_world()
        publish_pending()
        root = User.objects.create_superuser("root", password="x")
        issued = issue_token(
            actor="user:root",
            user=root,
            name="t",
            scopes=list(Capability),
            expires_at=timezone.now() + timedelta(days=9),
        )
        yield issued.text
        transaction.set_rollback(True)


@pytest.fixture(scope="module", autouse=True)
def _connection_stays() -> Iterator[None]:
    """As Django's own test client does: a request ends no connection that is inside a test's transaction."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
KINDS = [
    pytest.param(POSITIVE, True, EXAMPLES, id="fitting"),
    pytest.param(NEGATIVE, True, EXAMPLES, id="unfitting"),
    pytest.param(POSITIVE, False, 1, id="signed-out"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("mode", "signed_in", "examples"), KINDS)
@pytest.mark.parametrize("name", sorted(_operations()))
def test_answers_are_those_of_the_schema(
    bearer: str, name: str, mode: GenerationMode, signed_in: bool, examples: int
) -> None:
    operation = _operations()[name]
    headers = {"Authorization": f"Bearer {bearer}"} if signed_in else {}

    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans(), any_revision=st.booleans())
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any, real: bool, any_revision: bool) -> None:
        if real:
            arguments = case.path_parameters or {}
            case.path_parameters = {name: REAL.get(name, [value])[0] for name, value in arguments.items()}
        sent = headers | ({"If-Match": "*"} if any_revision and signed_in else {})
        with transaction.atomic():
            response = case.call(headers=sent)
            transaction.set_rollback(True)
        case.validate_response(response, checks=CHECKS)

    send()
