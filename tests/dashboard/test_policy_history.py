"""The policies page beside the form: revisions with one-click rollback, overrides, dry runs, staged roll-outs."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.audit.models import AuditEntry
from controlplane.policies.models import Rollout
from controlplane.policies.revisions import history
from controlplane.policies.selectors import find_policy
from controlplane.policies.services import set_watermark

pytestmark = pytest.mark.django_db

POOL = "/policies/pool/demo/"


def _post(client: Client, **changes: str) -> tuple[int, str]:
    form = {"low": "60", "high": "80", "dwell_s": "0", "revision": "0"} | changes
    answer = client.post(POOL, form)
    return answer.status_code, answer.content.decode()


def test_one_click_goes_back_to_a_revision(operator: Client, fleet: None) -> None:
    assert _post(operator)[0] == 302
    assert _post(operator, high="90", revision="1")[0] == 302
    page = operator.get(POOL).content.decode()
    assert "Roll back to 1" in page and "Roll back to 2" not in page, "what is in force needs no way back"
    assert _post(operator, how="rollback", to="1", revision="1")[0] == 412
    assert _post(operator, how="rollback", to="1", revision="2")[0] == 302
    assert find_policy("pool:demo").high == 0.8
    assert [row.origin for row in history("watermark", "pool:demo")] == ["rollback", "set", "set"]
    assert AuditEntry.objects.get(action="watermark.rollback").actor == "user:olga"


def test_an_override_shows_its_end_and_refuses_a_wrong_one(operator: Client, fleet: None) -> None:
    status, text = _post(operator, ends_min="0")
    assert status == 422 and "Minutes until the end" in text
    assert _post(operator, ends_min="30")[0] == 302
    assert find_policy("pool:demo").expires_at is not None
    assert "Until " in operator.get(POOL).content.decode()


def test_a_dry_run_shows_its_sample_and_stores_nothing(operator: Client, fleet: None) -> None:
    before = AuditEntry.objects.count()
    status, text = _post(operator, how="preview")
    assert status == 200 and 'id="dry-run"' in text
    assert "Too few to be certain" in text or "sampled decisions would go" in text
    assert 'value="80"' in text, "what was typed stays in the field"
    assert find_policy("pool:demo") is None and AuditEntry.objects.count() == before


def test_a_roll_out_is_begun_shown_advanced_and_rolled_back(operator: Client, fleet: None) -> None:
    assert _post(operator, how="rollout", reason="try it")[0] == 302
    row = Rollout.objects.get()
    page = operator.get("/policies/").content.decode()
    assert "Staged roll-outs" in page and f"/policies/rollouts/{row.pk}/" in page
    path = f"/policies/rollouts/{row.pk}/"
    assert "Go to the next stage now" in operator.get(path).content.decode()
    for _ in range(2):
        assert operator.post(f"{path}advance/", {"revision": "1"}).status_code == 302
    row.refresh_from_db()
    assert (row.state, row.stage) == ("running", 1), "the second advance was of a stage that was no longer shown"
    assert operator.post(f"{path}rollback/", {"revision": "1"}).status_code == 302
    row.refresh_from_db()
    assert (row.state, row.ended_by) == ("rolled_back", "user:olga"), "the way back is open at whatever stage"
    assert "Roll back on all routers" not in operator.get(path).content.decode()


def test_a_viewer_sees_and_moves_nothing(viewer: Client, operator: Client, fleet: None) -> None:
    set_watermark(actor="user:olga", scope="pool:demo", low=0.5, high=0.7)
    assert _post(operator, how="rollout", revision="1")[0] == 302
    path = f"/policies/rollouts/{Rollout.objects.get().pk}/"
    assert "Roll back" not in viewer.get(path).content.decode()
    assert "Roll back to" not in viewer.get(POOL).content.decode()
    for step in ("advance", "rollback"):
        assert viewer.post(f"{path}{step}/", {}).status_code == 403
    assert viewer.post(POOL, {"how": "rollback", "to": "1"}).status_code == 403
    assert operator.post(f"{path}elsewhere/", {}).status_code == 404
    assert operator.get("/policies/rollouts/999/").status_code == 404
