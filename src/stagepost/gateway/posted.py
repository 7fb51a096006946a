"""The message of a route that delivers: any JSON text, kept as the producer sent it."""

from __future__ import annotations

import msgspec


class Posted(msgspec.Struct, frozen=True):
    """A message for a consumer outside, as a route with ``deliver`` stores it.

    ``body``        the JSON text that the producer sent
    ``attributes``  the attributes of its CloudEvent, without the prefix ``ce-``; empty for any other message
    """

    body: msgspec.Raw
    attributes: dict[str, str] = {}
