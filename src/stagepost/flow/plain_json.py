"""Encode values of JSON's own types: data of users that has no declared type."""

from __future__ import annotations

from typing import Any

import msgspec

from stagepost.flow.errors import IllegalCall


def encode_plain(what: str, value: Any) -> bytes:
    """Encode a value. Raises ``IllegalCall``, which says ``what`` it is, for one that JSON gives back changed."""
    try:
        data = msgspec.json.encode(value)
        is_kept = msgspec.json.decode(data) == value
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise IllegalCall(f"{what} cannot be written as JSON: {error}") from error
    if not is_kept:
        raise IllegalCall(
            f"{what} does not survive JSON unchanged. Use str, int, float, bool, None, list and dict, no NaN, and "
            "texts as keys."
        )
    return data
