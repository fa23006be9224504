"""Which namespace, or shared cache domain, a salt belongs to: made by the same code that salts requests.

Salts are in no table and no snapshot; they are derived here for the follower of KV events, which sees them in clear.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings

from controlplane.snapshots.models import PublishedSnapshot
from router.contract.snapshot import NamespacePolicy, PolicySnapshot, open_document
from router.core.model import Grant, RoutingError
from router.core.policy_book import PolicyBook


class PublishedSalts:
    """Salt → name, of the newest published snapshot. Read anew when its version changes: 20 µs a salt."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._names: dict[str, str] = {}

    def __repr__(self) -> str:
        return "PublishedSalts(…)"

    def __call__(self) -> dict[str, str]:
        """One query, two when there is something new."""
        newest = PublishedSnapshot.objects.order_by("-version").values_list("version", flat=True).first()
        if newest is not None and newest != self._version:
            row = PublishedSnapshot.objects.filter(version=newest).first()
            if row is not None:
                _, snapshot = open_document(row.document.encode(), settings.FLEET_KEY)
                self._names = names_of(snapshot)
            self._version = newest
        return self._names


def names_of(snapshot: PolicySnapshot) -> dict[str, str]:
    """Of every namespace with each kind of model that it may use."""
    book = PolicyBook(fleet_key=settings.FLEET_KEY, verified_keys_max=1, stale_deny_after_s=0.0)
    book.apply(snapshot)
    models = _telling_models(snapshot)
    names = {}
    for namespace, policy in snapshot.namespaces.items():
        for model in _allowed(policy, models):
            try:
                grant: Grant | None = book.grant_of(namespace, model=model)
            except RoutingError:
                continue  # its nonce is not told, or the model is another namespace's
            while grant is not None:
                names[grant.salt] = str(grant.cache)
                grant = grant.public
    return names


def _telling_models(snapshot: PolicySnapshot) -> tuple[list[str], list[str]]:
    """Models without a later generation, which all have one salt in a namespace; and those with a salt of their own."""
    plain: list[str] = []
    later: list[str] = []
    for pool in snapshot.pools.values():
        for model in pool.models:
            (later if model in pool.model_generations else plain).append(model)
    return plain, later


def _allowed(policy: NamespacePolicy, models: tuple[list[str], list[str]]) -> Iterator[str]:
    plain, later = models
    of_namespace = frozenset(policy.models)
    yield from [model for model in plain if not of_namespace or model in of_namespace][:1]
    yield from [model for model in later if not of_namespace or model in of_namespace]
