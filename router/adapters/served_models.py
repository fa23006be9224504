"""Which models a worker serves under which names, and which of them are adapters: an adapter's name and path are in the
hashes of all its blocks.

From `/v1/models` (vLLM 0.32): an adapter's card names its base model as `parent` and its path as `root`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import httpx
import msgspec

from router.core.exact.block_hashes import Adapter

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1024 * 1024
MODELS_MAX = 4096

ServedModels = Mapping[str, Adapter | None]
"""Name → the adapter, None for the model itself."""


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None


class _Page(msgspec.Struct):
    data: Annotated[list[_Card], msgspec.Meta(max_length=MODELS_MAX)]


async def served_models(
    client: httpx.AsyncClient, worker_url: str, *, headers: Mapping[str, str]
) -> ServedModels | str:
    """The worker's models, or why they are unknown; never raises for what the worker does."""
    url = worker_url.rstrip("/") + "/v1/models"
    try:
        async with client.stream("GET", url, headers=headers, timeout=TIMEOUT_S) as answer:
            if answer.status_code != 200:
                return f"the worker answers /v1/models with status {answer.status_code}"
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    return "the worker's list of models is too long"
        cards = msgspec.json.decode(body, type=_Page).data
    except httpx.HTTPError as error:
        return f"the worker does not answer: {type(error).__name__}"
    except msgspec.DecodeError:
        return "the worker's list of models is not understood"
    return {card.id: None if card.parent is None else Adapter(card.id, card.root or "") for card in cards}
