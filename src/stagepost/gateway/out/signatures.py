"""Sign deliveries as the specification Standard Webhooks says: an HMAC over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from stagepost.flow.errors import DeclarationError

PREFIX = "whsec_"
# The specification's bounds.
KEY_BYTES_MIN = 24
KEY_BYTES_MAX = 64


def key_of(secret: str, place: str) -> bytes:
    """Decode a secret. Raises ``DeclarationError``, which does not contain it."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise DeclarationError(
            f"the secret of {place} must be {PREFIX} and then {KEY_BYTES_MIN} to {KEY_BYTES_MAX} random bytes in base64"
        )
    return key


def signature_headers(keys: Sequence[bytes], message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of a signed delivery. With several keys it has a signature of each, for a change of keys."""
    signed = b".".join((message_id.encode(), str(seconds).encode(), body))
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }
