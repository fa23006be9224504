"""Waiting until Valkey, the web server and the router answer."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import httpx
import redis.asyncio
from redis.exceptions import AuthenticationError, RedisError

PAUSE_S = 0.1
ANSWER_WITHIN_S = 2.0


class NotReady(Exception):
    """The message names what did not answer and for how long."""


async def valkey_answers(url: str, *, within_s: float) -> None:
    client = redis.asyncio.Redis.from_url(url, socket_timeout=ANSWER_WITHIN_S, socket_connect_timeout=ANSWER_WITHIN_S)
    where = urlsplit(url).hostname or url
    deadline = time.monotonic() + within_s
    try:
        while True:
            try:
                await client.ping()
                return
            except AuthenticationError as error:
                raise NotReady(f"Valkey at {where} refuses the password of TIDEMARK_REDIS_URL ({error})") from None
            except (RedisError, OSError) as error:
                if time.monotonic() > deadline:
                    raise NotReady(f"Valkey at {where} does not answer within {within_s:.0f} s ({error})") from None
            await asyncio.sleep(PAUSE_S)
    finally:
        await client.aclose()


async def url_answers(url: str, *, within_s: float) -> None:
    """Until GET gives 200."""
    deadline = time.monotonic() + within_s
    last = "no connection"
    async with httpx.AsyncClient(timeout=ANSWER_WITHIN_S, trust_env=False) as client:
        while time.monotonic() < deadline:
            try:
                answer = await client.get(url)
                if answer.status_code == 200:
                    return
                last = f"status {answer.status_code}"
            except httpx.HTTPError as error:
                last = type(error).__name__
            await asyncio.sleep(PAUSE_S)
    raise NotReady(f"{url} is not ready after {within_s:.0f} s ({last})")
