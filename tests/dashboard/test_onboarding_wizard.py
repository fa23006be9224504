"""The onboarding wizard: each step tries all of it, nothing is kept before the last, and the key is shown once."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from controlplane.approvals.models import ChangeRequest
from controlplane.audit.models import AuditEntry
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.policies.models import WatermarkPolicy
from controlplane.tenants.models import Tenant
from dashboard import fragments
from tests.dashboard import story

pytestmark = pytest.mark.django_db

TENANT = {"tenant_id": "umbrella", "tenant_name": "Umbrella"}
NAMESPACE = {"slug": "reports", "namespace_name": "", "isolation": "private", "on_stale": "deny", "model_names": ["m"]}
LIMITS = {"prefill_tokens_per_s": "5000", "prefill_burst_tokens": "", "ttft_slo_ms": "900", "priority": "1",
          "low": "60", "high": "80 %"}  # fmt: skip
REVIEW = {"key_name": "app", "key_expires": "90"}
ALL = {**TENANT, **NAMESPACE, **LIMITS, **REVIEW}
START = {"isolation": "private", "on_stale": "serve", "priority": "0", "key_name": "app", "key_expires": "90"}


def _post(client: Client, step: str, go: str = "next", **values: object):
    return client.post("/onboarding/", {**START, **values, "step": step, "go": go})


def _step(answer) -> str:
    return re.search(r'name="step" value="(\w+)"', answer.content.decode())[1]  # type: ignore[index]


def _nothing_made() -> bool:
    return not any(
        model.objects.exists() for model in (Tenant, CacheNamespace, ApiKey, AuditEntry, ChangeRequest)
    ) and not WatermarkPolicy.objects.exclude(scope="global").exists()  # fmt: skip


def test_four_steps_lead_to_a_key_and_nothing_is_made_before(operator: Client) -> None:
    assert _step(operator.get("/onboarding/")) == "tenant"
    answer = _post(operator, "tenant", **TENANT)
    assert _step(answer) == "namespace" and b'name="tenant_id" value="umbrella"' in answer.content
    assert _step(_post(operator, "namespace", **TENANT, **NAMESPACE)) == "limits"
    review = _post(operator, "limits", **TENANT, **NAMESPACE, **LIMITS)
    assert _step(review) == "review" and b"umbrella/reports" in review.content and _nothing_made()
    done = _post(operator, "review", "create", **ALL)
    key = re.search(r"tm_([0-9a-z]{12})_[A-Za-z0-9_-]{43}", done.content.decode())
    assert done.status_code == 200 and key and "no-store" in done["cache-control"]
    tenant, row = Tenant.objects.get(), CacheNamespace.objects.get()
    assert (tenant.slug, tenant.prefill_tokens_per_s, row.namespace_id) == ("umbrella", 5000.0, "umbrella/reports")
    assert (row.on_stale, row.ttft_slo_ms, row.priority, row.model_names) == ("deny", 900.0, 1, ["m"])
    mark = WatermarkPolicy.objects.get(scope="namespace")
    assert (mark.low, mark.high) == (0.6, 0.8)
    assert ApiKey.objects.get().key_id == key[1]


@pytest.mark.parametrize(
    ("step", "change", "words"),
    [
        ("tenant", {"tenant_id": "Not Good"}, "Use 1–48 lower-case letters"),
        ("tenant", {"tenant_name": ""}, "cannot be blank"),
        ("namespace", {"slug": ""}, "cannot be blank"),
        ("limits", {"prefill_burst_tokens": "5", "prefill_tokens_per_s": ""}, "A burst needs"),
        ("limits", {"ttft_slo_ms": "soon"}, "This is not a number."),
        ("limits", {"low": "90", "high": "80"}, "Low must be below high."),
        ("limits", {"low": "", "high": "80"}, "Give both watermarks, or neither."),
        ("review", {"key_name": ""}, "cannot be blank"),
        ("review", {"key_expires": "7000"}, "Choose when the key expires."),
    ],
)
def test_what_is_wrong_is_said_on_its_own_step(operator: Client, step: str, change: dict, words: str) -> None:
    answer = _post(operator, step, "create" if step == "review" else "next", **{**ALL, **change})
    assert _step(answer) == step and words in answer.content.decode() and answer.status_code in (409, 422)
    assert 'aria-invalid="true"' in answer.content.decode() and _nothing_made()


def test_a_taken_id_is_said_on_the_first_step_even_at_the_last(operator: Client) -> None:
    story.make_fleet()
    answer = _post(operator, "review", "create", **{**ALL, "tenant_id": "acme"})
    assert answer.status_code == 409 and _step(answer) == "tenant" and b"already exists" in answer.content
    assert not Tenant.objects.filter(slug="umbrella").exists()


def test_going_back_keeps_what_was_typed_and_checks_nothing(operator: Client) -> None:
    answer = _post(operator, "namespace", "back", **TENANT, **{**NAMESPACE, "slug": "Not Good"})
    assert _step(answer) == "tenant" and b'value="umbrella"' in answer.content and b'value="Not Good"' in answer.content


def test_sharing_is_proposed_along_and_the_namespace_is_private_until_then(operator: Client) -> None:
    wish = {"isolation": "project", "project": "help", "sharing_reason": "same articles"}
    done = _post(operator, "review", "create", **{**ALL, **wish})
    assert done.status_code == 200 and b"Sharing is proposed" in done.content
    assert CacheNamespace.objects.get().isolation == "private"
    assert ChangeRequest.objects.get().subject == "umbrella/reports"
    missing = _post(operator, "namespace", **{**ALL, "tenant_id": "other", **wish, "project": ""})
    assert _step(missing) == "namespace" and b"Name the project" in missing.content


def test_only_who_may_make_all_of_it_may_begin(viewer: Client) -> None:
    assert viewer.get("/onboarding/").status_code == 403
    assert _post(viewer, "review", "create", **ALL).status_code == 403 and _nothing_made()


def test_its_first_steps_are_followed_until_the_first_hit(operator: Client, now) -> None:
    story.make_fleet()
    story.make_rollout(now)
    body = operator.get("/fragments/onboarding/?item=acme/support").content.decode()
    assert "waiting for it …" in body and "1 of 1 routers serve it" in body
    story.tell(now, minutes=2)
    fragments.forget()
    body = operator.get("/fragments/onboarding/?item=acme/support").content.decode()
    assert "so far" in body and "tokens from cache" in body
