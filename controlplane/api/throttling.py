"""Rate limits: so many reads and so many changes a minute for each caller, counted in fixed windows of a minute."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.core.cache import cache
from django.utils import timezone
from rest_framework.exceptions import Throttled
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from controlplane.api.authentication import RouterPrincipal
from controlplane.tenants.models import User

WINDOW_S = 60


@dataclass(frozen=True, slots=True)
class Rate:
    """How the caller stands in this minute."""

    limit: int
    used: int
    reset_s: int
    """Until the next minute."""

    def headers(self) -> dict[str, str]:
        """As in draft-ietf-httpapi-ratelimit-headers-07."""
        remaining = max(0, self.limit - self.used)
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(remaining),
            "RateLimit-Reset": str(self.reset_s),
        }


def counted(request: Request) -> Rate | None:
    """The caller's rate with this request in it; None for routers, whose polls are not limited."""
    if isinstance(request.user, RouterPrincipal):
        return None
    reads = request.method in SAFE_METHODS
    limit = settings.CONFIG.api_reads_per_min if reads else settings.CONFIG.api_changes_per_min
    now_s = int(timezone.now().timestamp())
    key = f"api-rate:{'read' if reads else 'change'}:{_caller(request)}:{now_s // WINDOW_S}"
    return Rate(limit=limit, used=_count(key), reset_s=WINDOW_S - now_s % WINDOW_S)


def refuse_above(rate: Rate | None) -> None:
    """Raises Throttled with the time to wait."""
    if rate is not None and rate.used > rate.limit:
        raise Throttled(wait=rate.reset_s)


def _count(key: str) -> int:
    cache.add(key, 0, timeout=2 * WINDOW_S)
    try:
        return cache.incr(key)
    except ValueError:  # evicted between the two
        return 1


def _caller(request: Request) -> str:
    if isinstance(request.user, User):
        return f"user:{request.user.pk}"
    return f"address:{_address(request)}"


def _address(request: Request) -> str:
    """The client's, as the nearest trusted proxy saw it."""
    proxies = settings.CONFIG.trusted_proxies
    hops = [hop.strip() for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")]
    return hops[-proxies] if 0 < proxies <= len(hops) else str(request.META.get("REMOTE_ADDR", ""))
