"""Changing the fleet: every change audited, addressed, refused when it breaks a rule."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.errors import Conflict, Invalid, NotFound, Stale
from controlplane.fleet import services
from controlplane.fleet.models import PoolModel, Worker, WorkerPool

ALICE = "user:alice"


@pytest.fixture(autouse=True)
def without_publication(settings):
    settings.TIDEMARK_ON_ROUTING_CHANGE = "tests.fleet.test_services.nothing"


def nothing() -> None:
    pass


@pytest.fixture
def pool(db) -> WorkerPool:
    return services.create_pool(actor=ALICE, slug="p", models=["llama", "qwen"], block_size=32)


@pytest.fixture
def worker(pool) -> Worker:
    return services.add_worker(actor=ALICE, pool="p", slug="w1", url="http://127.0.0.1:27001")


def last_entry() -> AuditEntry:
    return AuditEntry.objects.order_by("-id").first()


def test_every_change_is_one_audit_entry_that_routers_must_learn_of(worker):
    services.update_pool("p", actor=ALICE, spill_outstanding=4)
    services.update_worker("p/w1", actor=ALICE, url="http://127.0.0.1:27002")
    services.set_worker_state("p/w1", actor=ALICE, state="drain", reason="new driver")
    services.delete_worker("p/w1", actor=ALICE)
    services.delete_pool("p", actor=ALICE)
    entries = AuditEntry.objects.order_by("id")
    assert [entry.action for entry in entries] == [
        "pool.create", "worker.create", "pool.update", "worker.update", "worker.drain", "worker.delete", "pool.delete",
    ]  # fmt: skip
    assert all(entry.affects_routing for entry in entries)
    drained = entries.get(action="worker.drain")
    assert (drained.before["state"], drained.after["state"], drained.reason) == ("ready", "drain", "new driver")


def test_a_model_belongs_to_one_pool(pool):
    with pytest.raises(Conflict, match="llama"):
        services.create_pool(actor=ALICE, slug="q", models=["llama"])
    assert not WorkerPool.objects.filter(slug="q").exists()


def test_models_are_replaced_as_a_whole(pool):
    services.update_pool("p", actor=ALICE, models=["qwen", "mixtral"])
    assert set(PoolModel.objects.values_list("name", flat=True)) == {"qwen", "mixtral"}
    assert last_entry().before["models"] == ["llama", "qwen"]


@pytest.mark.parametrize("models", [[], [f"m{i}" for i in range(65)]])
def test_a_pool_needs_a_bounded_list_of_models(db, models):
    with pytest.raises(Invalid):
        services.create_pool(actor=ALICE, slug="p", models=models)


def test_an_older_revision_is_refused(pool, worker):
    services.update_pool("p", actor=ALICE, name="Fleet", expected_revision=1)
    with pytest.raises(Stale):
        services.update_pool("p", actor=ALICE, name="Other", expected_revision=1)
    services.set_worker_state("p/w1", actor=ALICE, state="drain", expected_revision=1)
    with pytest.raises(Stale):
        services.set_worker_state("p/w1", actor=ALICE, state="ready", expected_revision=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "http://8.8.8.8:80"), ("url", "http://127.0.0.1"), ("url", "http://0x7f.1:80"),
        ("kv_events_endpoint", "ipc:///tmp/x"), ("kv_events_endpoint", "tcp://8.8.8.8:5557"),
        ("kv_replay_endpoint", "tcp://127.0.0.1:5558"), ("dcgm_url", "http://169.254.169.254:80/latest"),
    ],
)  # fmt: skip
def test_an_address_that_must_not_be_called_names_its_field(pool, field, value):
    with pytest.raises(Invalid) as caught:
        services.add_worker(**{"actor": ALICE, "pool": "p", "slug": "w", "url": "http://127.0.0.1:27009", field: value})
    assert caught.value.errors[0]["field"] == field
    assert not Worker.objects.exists()


def test_two_workers_cannot_share_a_url_or_a_name(worker):
    with pytest.raises(Conflict):
        services.add_worker(actor=ALICE, pool="p", slug="w2", url="http://127.0.0.1:27001/")
    with pytest.raises(Conflict):
        services.add_worker(actor=ALICE, pool="p", slug="w1", url="http://127.0.0.1:27003")


def test_a_changed_url_forgets_what_the_worker_said(worker):
    Worker.objects.update(facts={"block_size": 32})
    assert services.update_worker("p/w1", actor=ALICE, url="http://127.0.0.1:27002").facts == {}


def test_a_pool_with_workers_cannot_be_deleted(worker):
    with pytest.raises(Conflict):
        services.delete_pool("p", actor=ALICE)


@pytest.mark.parametrize("state", ["", "READY", "gone"])
def test_only_known_states_are_accepted(worker, state):
    with pytest.raises(Invalid):
        services.set_worker_state("p/w1", actor=ALICE, state=state)


def test_what_is_not_there_is_not_found(db):
    for change in (services.delete_pool, services.update_pool):
        with pytest.raises(NotFound):
            change("none", actor=ALICE)
    for change in (services.delete_worker, services.update_worker, services.test_worker):
        with pytest.raises(NotFound):
            change("none/w1", actor=ALICE)


@pytest.mark.parametrize(
    "fields", [{"block_size": 0}, {"virtual_nodes": 1_000_000}, {"routing": "magic"}, {"colour": "red"},
               {"prefill_tokens_per_s": -1}, {"slug": "Not A Slug"}],
)  # fmt: skip
def test_values_outside_their_bounds_are_refused(db, fields):
    with pytest.raises(Invalid):
        services.create_pool(**{"actor": ALICE, "slug": "p", "models": ["m"], **fields})
