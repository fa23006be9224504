"""What a file may say: faults are named at their line, nothing is applied in part, and only managed things go."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from controlplane.audit.models import AuditEntry
from controlplane.declarative.models import ManagedObject
from controlplane.declarative.services import apply, diff
from controlplane.errors import Invalid
from controlplane.fleet.models import Worker, WorkerPool
from controlplane.namespaces.models import CacheNamespace
from controlplane.tenants.models import Tenant

pytestmark = pytest.mark.django_db
ACTOR = "system:apply olga"
TENANT = """\
apiVersion: tidemark/v1
kind: Tenant
metadata:
  name: acme
  managed-by: repo/fleet
spec:
  name: Acme
"""
POOL = """\
apiVersion: tidemark/v1
kind: Pool
metadata:
  name: llama
  managed-by: repo/fleet
spec:
  models: [m]
---
apiVersion: tidemark/v1
kind: Worker
metadata:
  name: llama/w1
  managed-by: repo/fleet
spec:
  url: http://127.0.0.1:8001
"""


def _namespace(name: str = "acme/support", **spec: str) -> str:
    lines = "".join(f"  {key}: {value}\n" for key, value in spec.items())
    head = f"---\napiVersion: tidemark/v1\nkind: Namespace\nmetadata:\n  name: {name}\n"
    return head + (f"spec:\n{lines}" if lines else "")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (TENANT.replace("kind: Tenant", "kind: Tenent"), 2, "no such kind"),
        (TENANT.replace("tidemark/v1", "tidemark/v9"), 1, "apiVersion"),
        (TENANT.replace("  name: Acme", "  nmae: Acme"), 7, "nmae: there is no such field"),
        (TENANT.replace("  name: Acme", "  name: 7"), 7, "must be a text"),
        (TENANT.replace("  name: Acme", "  status: active"), 6, "name: is required"),
        (TENANT + "  prefill_tokens_per_s: -3\n", 8, "prefill_tokens_per_s"),
        (TENANT + "  name: Again\n", 8, "there twice"),
        (TENANT + "---\n" + TENANT, 12, "in the file twice"),
        (TENANT + _namespace(priority="9"), 14, "priority"),
        (TENANT + _namespace(on_stale="perhaps"), 14, "on_stale"),
        (TENANT + _namespace(isolation="project", project="help"), 9, "two persons"),
        (_namespace("nobody/support"), 2, "no tenant 'nobody'"),
        (TENANT + "  status: &a active\n---\n*a\n", 10, "undefined alias|anchors"),
        (TENANT + "  broken: [\n", 9, "expected"),
        (TENANT.replace("name: Acme", "name: !!python/name:os.system x"), 7, "could not determine|constructor"),
        (POOL.replace("http://127.0.0.1:8001", "http://169.254.169.254:80"), 15, "url"),
    ],
)
def test_a_fault_is_named_with_file_and_line_and_nothing_is_applied(text: str, where: int, what: str) -> None:
    entries = AuditEntry.objects.count()
    with pytest.raises(Invalid, match=rf"^fleet\.yaml:{where}: .*({what})"):
        apply(text, file="fleet.yaml", actor=ACTOR)
    assert (Tenant.objects.count(), WorkerPool.objects.count(), ManagedObject.objects.count()) == (0, 0, 0)
    assert AuditEntry.objects.count() == entries


def test_an_apply_is_audited_as_the_changes_it_made_and_as_a_whole() -> None:
    apply(TENANT + _namespace(), file="fleet.yaml", actor=ACTOR, reason="ticket 7")
    rows = list(AuditEntry.objects.order_by("id").values_list("action", "actor", "reason"))
    assert [action for action, _, _ in rows] == ["tenant.create", "namespace.create", "file.apply"]
    assert {actor for _, actor, _ in rows} == {ACTOR} and rows[-1][2] == "ticket 7"


def test_a_dry_run_says_what_would_be_done_and_leaves_everything(django_capture_on_commit_callbacks) -> None:
    with django_capture_on_commit_callbacks() as calls:
        steps = apply(TENANT + _namespace(), file="fleet.yaml", actor=ACTOR, dry_run=True)
    assert [step.name for step in steps] == ["acme", "acme/support"] and not calls
    assert not Tenant.objects.exists() and not AuditEntry.objects.exists()


def test_what_the_file_leaves_out_of_an_object_goes_back_to_its_default() -> None:
    apply(TENANT + _namespace(priority="2", on_stale="deny"), file="f", actor=ACTOR)
    apply(TENANT + _namespace(priority="2"), file="f", actor=ACTOR)
    row = CacheNamespace.objects.get()
    assert (row.priority, row.on_stale) == (2, "serve")


def test_prune_takes_away_what_its_managers_manage_and_nothing_else() -> None:
    apply(TENANT + "---\n" + POOL, file="f", actor=ACTOR)
    apply(_namespace("acme/by-hand"), file="f", actor=ACTOR)
    left = apply(TENANT, file="f", actor=ACTOR)
    assert left == [] and Worker.objects.exists(), "without prune nothing goes"
    steps = apply(TENANT, file="f", actor=ACTOR, prune=True)
    assert [(step.verb, step.name) for step in steps] == [("remove", "llama/w1"), ("remove", "llama")]
    assert not WorkerPool.objects.exists()
    assert CacheNamespace.objects.get().status == "active", "nobody's file manages it"
    assert apply(TENANT, file="f", actor=ACTOR, prune=True) == []


def test_a_file_of_another_manager_prunes_nothing_of_this_one() -> None:
    apply(TENANT + "---\n" + POOL, file="f", actor=ACTOR)
    other = TENANT.replace("name: acme", "name: globex").replace("repo/fleet", "repo/other")
    assert [step.verb for step in diff(other, file="f", prune=True)] == ["create"]


def test_the_command_tells_differences_by_its_exit_status(tmp_path, capsys) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(TENANT)
    with pytest.raises(SystemExit) as differs:
        call_command("tidemark", "diff", str(file))
    assert differs.value.code == 1
    assert "+ Tenant acme" in capsys.readouterr().out
    call_command("tidemark", "apply", str(file), "--dry-run")
    assert not Tenant.objects.exists()
    call_command("tidemark", "apply", str(file))
    call_command("tidemark", "diff", str(file))
    assert "no changes" in capsys.readouterr().out
    call_command("tidemark", "export")
    assert (
        "---\napiVersion: tidemark/v1\nkind: Tenant\nmetadata:\n  managed-by: repo/fleet\n  name: acme\n"
        in capsys.readouterr().out
    )
    file.write_text(TENANT.replace("name: Acme", "name: 7"))
    with pytest.raises(CommandError) as refused:
        call_command("tidemark", "apply", str(file))
    assert refused.value.returncode == 2 and f"{file}:7" in str(refused.value)


def test_the_command_verifies_the_audit_log(capsys) -> None:
    apply(TENANT, file="f", actor=ACTOR)
    call_command("tidemark", "verify-audit")
    assert "audit log whole" in capsys.readouterr().out
    AuditEntry.objects.filter(id=2)._raw_delete("default")
    with pytest.raises(CommandError, match="audit entry 2") as found:
        call_command("tidemark", "verify-audit")
    assert found.value.returncode == 1
