"""The watermark form: field errors in words, compare-and-set, publication."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.audit.models import AuditEntry
from controlplane.policies.models import WatermarkPolicy

pytestmark = pytest.mark.django_db


def _post(client: Client, **changes: str) -> tuple[int, str]:
    form = {"low": "60", "high": "80", "dwell_s": "0", "revision": "1"} | changes
    answer = client.post("/policies/global/", form)
    return answer.status_code, answer.content.decode()


@pytest.fixture
def policy(fleet: None) -> WatermarkPolicy:
    return WatermarkPolicy.objects.get(scope="global")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"low": "90"}, "Low must be below high"),
        ({"high": "abc"}, "High must be a number"),
        ({"high": "nan"}, "High must be a number"),
        ({"high": "120"}, "High must be between 1 % and 100 %"),
        ({"low": "0"}, "Low must be between 1 % and 100 %"),
        ({"dwell_s": "1e9"}, "Dwell must be between 0 and 3600"),
    ],
)
def test_it_says_at_the_field_what_is_wrong(
    operator: Client, policy: WatermarkPolicy, changes: dict[str, str], error: str
) -> None:
    status, text = _post(operator, revision=str(policy.revision), **changes)
    assert status == 422
    assert error in text and "is-invalid" in text
    typed = next(iter(changes.values()))
    assert f'value="{typed}"' in text, "what was typed stays in the field"
    policy.refresh_from_db()
    assert (policy.low, policy.high) == (0.65, 0.85)


def test_it_stores_publishes_and_says_what_it_means(
    operator: Client, policy: WatermarkPolicy, django_capture_on_commit_callbacks: object
) -> None:
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        status, _ = _post(operator, revision=str(policy.revision), low="55,5", high="82.5")
    assert status == 302
    policy.refresh_from_db()
    assert (policy.low, policy.high) == (0.555, 0.825)
    assert AuditEntry.objects.get(action="watermark.set").actor == "user:olga"
    text = operator.get("/policies/").content.decode()
    assert "takes no new prefixes at 82.5 % KV use or more" in text
    assert "published v13" in text and "0 of 1 routers on v13" in text


def test_it_refuses_to_overwrite_somebody_elses_change(operator: Client, policy: WatermarkPolicy) -> None:
    assert _post(operator, revision=str(policy.revision), high="81")[0] == 302
    status, text = _post(operator, revision=str(policy.revision), high="90")
    assert status == 412
    assert "changed since" in text and "Load the current values" in text
    policy.refresh_from_db()
    assert policy.high == 0.81


def test_it_gives_a_pool_a_policy_of_its_own(operator: Client, policy: WatermarkPolicy) -> None:
    assert operator.get("/policies/?scope=pool:demo")["Location"].startswith("/policies/pool/demo/")
    form = {"low": "50", "high": "70", "dwell_s": "5", "revision": "0"}
    assert operator.post("/policies/pool/demo/", form).status_code == 302
    assert "pool:demo" in operator.get("/policies/").content.decode()
    assert operator.post("/policies/pool/none/", form).status_code == 404


def test_it_leaves_the_form_closed_to_a_viewer(viewer: Client, policy: WatermarkPolicy) -> None:
    text = viewer.get("/policies/").content.decode()
    assert "disabled" in text and "Publish watermark" not in text
