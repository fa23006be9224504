"""Placement rules in force: which prefixes have more homes than their load asks for, by an operator's word (S3.6).

A rule names a prefix by its keyed id, which each router makes from the prompt's own blocks (`heat.py`). It ends by the
router's clock, whether or not the control plane is in reach. O(1) a request: one hash, and none without rules for its
namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.contract.ids import NamespaceId, PoolId
from router.contract.snapshot import Placement
from router.core.heat import heat_block, prefix_id
from router.core.model import RoutingRequest


class Placements:
    def __init__(self, *, key: bytes) -> None:
        """`key`: of the prefixes' ids."""
        self._key: Final = key
        self._rules: dict[tuple[NamespaceId, PoolId], dict[str, Placement]] = {}

    def apply(self, placements: Iterable[Placement]) -> None:
        """Replaces what held before."""
        self._rules = {}
        for rule in placements:
            self._rules.setdefault((rule.namespace, rule.pool), {})[rule.prefix] = rule

    def homes(self, request: RoutingRequest, *, now: float) -> int:
        """Homes that a rule asks for; 0 without one. `now` in Unix seconds."""
        if not self._rules or request.fingerprint is None:
            return 0
        rules = self._rules.get((request.grant.namespace, request.grant.pool))
        block = heat_block(request.fingerprint) if rules is not None else None
        if rules is None or block is None:
            return 0
        rule = rules.get(prefix_id(self._key, block))
        return rule.homes if rule is not None and now < rule.until else 0
