"""A router and scripted workers, as the router's own tests have them; signed revocations to send to it."""

from __future__ import annotations

import httpx

from router.contract.revocation import RevocationAck, encode_revocations, open_ack, sign_revocation
from tests.router.conftest import (  # noqa: F401 - fixtures
    FLEET,
    RunningRouter,
    other_worker,
    router,
    start_router,
    worker,
)


async def send(router: RunningRouter, *, fleet=FLEET, **fields: object) -> httpx.Response:  # noqa: F811
    """POST one signed revocation to the admin port."""
    return await send_all(router, [fields], fleet=fleet)


async def send_all(router: RunningRouter, each: list[dict], *, fleet=FLEET) -> httpx.Response:  # noqa: F811
    body = encode_revocations(sign_revocation(fleet, **fields) for fields in each)
    async with httpx.AsyncClient(base_url=router.admin_url, timeout=5, trust_env=False) as client:
        return await client.post("/revocations", content=body)


def acked(answer: httpx.Response) -> tuple[int, ...]:
    """The epochs of an acknowledgement of the router r1."""
    assert answer.status_code == 200
    ack: RevocationAck = open_ack(answer.content, FLEET)
    assert ack.router == "r1"
    return ack.epochs
