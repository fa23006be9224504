"""A file holds the whole configuration: applied to an empty database it makes the same snapshot, and twice nothing."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.audit.verification import verify_chain
from controlplane.declarative.services import apply, export
from controlplane.namespaces.models import ApiKey, CacheNamespace
from controlplane.snapshots.compiler import compile_snapshot
from controlplane.tenants.models import Tenant
from router.contract.snapshot import body_text, digest_of
from tests.declarative.conftest import empty_the_database

ACTOR = "system:apply olga"


def _digest() -> str:
    return digest_of(body_text(compile_snapshot()))


def _apply(text: str, **options: object) -> list[str]:
    steps = apply(text, file="fleet.yaml", actor=ACTOR, **options)  # type: ignore[arg-type]
    return [f"{step.verb} {step.kind.name} {step.name}" for step in steps]


@pytest.mark.django_db(transaction=True)
def test_an_export_applied_to_an_empty_database_makes_the_same_snapshot(fleet) -> None:
    before, text = _digest(), export(with_secrets=True)
    empty_the_database()
    assert not Tenant.objects.exists() and _digest() != before
    done = _apply(text)
    assert len(done) > 15
    assert _digest() == before
    assert export(with_secrets=True) == text
    assert _apply(text) == []
    assert verify_chain().bad_id is None


def test_applying_its_own_export_changes_nothing(fleet) -> None:
    for text in (export(), export(with_secrets=True)):
        entries = AuditEntry.objects.count()
        assert _apply(text) == []
        assert AuditEntry.objects.count() == entries


def test_an_export_shows_neither_secrets_nor_what_makes_salts(fleet) -> None:
    plain, whole = export(), export(with_secrets=True)
    hidden = [*ApiKey.objects.values_list("secret_hash", flat=True)]
    hidden += [*CacheNamespace.objects.values_list("generation_nonce", flat=True)]
    assert len(hidden) >= 8
    assert not [secret for secret in hidden if secret in plain or secret in whole]
    assert "ApiKey" not in plain and "SealedState" not in plain


def test_equal_state_gives_equal_bytes(fleet) -> None:
    assert export(with_secrets=True) == export(with_secrets=True)


def test_a_sealed_state_opens_with_its_fleet_key_alone(fleet, settings) -> None:
    from controlplane.errors import Invalid
    from router.contract.secrets import FleetKey

    text = export(with_secrets=True)
    settings.FLEET_KEY = FleetKey(b"another key of thirty-two bytes!")
    with pytest.raises(Invalid, match="another fleet key"):
        _apply(text)


def test_a_sealed_state_is_of_one_object(fleet) -> None:
    from controlplane.errors import Invalid

    text = export(with_secrets=True)
    swapped = text.replace("    Namespace acme/lab:", "    Namespace acme/x:").replace(
        "    Namespace acme/desk:", "    Namespace acme/lab:"
    )
    with pytest.raises(Invalid, match="of another object"):
        _apply(swapped)


def test_an_old_file_never_brings_back_a_rotated_generation_or_a_revoked_key(fleet) -> None:
    from controlplane.namespaces.key_services import revoke_key
    from controlplane.namespaces.services import rotate_generation

    text = export(with_secrets=True)
    rotate_generation(actor="user:alice", namespace="acme/lab")
    nonce = CacheNamespace.objects.get(slug="lab").generation_nonce
    assert _apply(text) == []
    assert CacheNamespace.objects.get(slug="lab").generation_nonce == nonce
    revoke_key(actor="user:alice", key_id=ApiKey.objects.get(name="ci").key_id)
    from controlplane.errors import Invalid

    with pytest.raises(Invalid, match="not changed in place"):
        _apply(text)
    assert ApiKey.objects.get(name="ci").status == "revoked"
