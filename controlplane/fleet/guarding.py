"""Proofs for the control plane's own requests to guarded workers (S26), and the key a worker's guard is given."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.conf import settings

from controlplane.fleet.models import WorkerPool
from controlplane.revocations.services import current_epoch
from router.contract.guard import guard_key, proof
from router.contract.ids import PoolId


def proof_maker(pool: WorkerPool) -> Callable[[str], str]:
    """Salt → proof of this moment; "" for every salt where the pool has no guard."""
    if not pool.guarded:
        return lambda salt: ""
    key, epoch = guard_key(settings.FLEET_KEY, PoolId(pool.slug)), current_epoch()
    return lambda salt: proof(key, salt=salt, epoch=epoch, now=time.time())


def guard_key_hex(pool: str) -> str:
    """What `TIDEMARK_GUARD_KEY_FILE` of the pool's workers holds. A secret: whoever has it reaches these workers."""
    return guard_key(settings.FLEET_KEY, PoolId(pool)).hex()
