"""State that a file may carry but nobody may read from it: nonces and keyed hashes, encrypted by the fleet key.

AES-256-SIV (RFC 5297): equal state gives equal text, so that a repository shows only what changed, and each text opens
only for the object that it was made for. Who holds the fleet key could make the salts anyway.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from django.conf import settings

from controlplane.declarative.documents import Spec

SEALED_KIND = "SealedState"


def seal(kind: str, name: str, state: Spec) -> str:
    text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    return base64.urlsafe_b64encode(_cipher().encrypt(text, [kind.encode(), name.encode()])).decode()


def unseal(kind: str, name: str, sealed: str) -> Spec:
    """Raises ValueError where it was sealed by another fleet key, for another object, or altered."""
    try:
        text = _cipher().decrypt(base64.urlsafe_b64decode(sealed), [kind.encode(), name.encode()])
    except (InvalidTag, binascii.Error, ValueError):
        raise ValueError("altered, of another object, or sealed with another fleet key") from None
    found: Any = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a sealed state")
    return found


def _cipher() -> AESSIV:
    return AESSIV(settings.FLEET_KEY.subkey("sealed-state/v1/mac") + settings.FLEET_KEY.subkey("sealed-state/v1/text"))
