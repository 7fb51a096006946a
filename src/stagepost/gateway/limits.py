"""The limits of a gateway: sizes, times, concurrency and rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

Size = Annotated[int, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of each gateway process. Sizes are in bytes, times in seconds.

    ``body_max``         of a request's body, also after its decompression; a larger one is not kept in memory
    ``headers_max``, ``header_bytes_max``  the number of headers, and the size of all of them
    ``json_depth_max``   how deep arrays and objects of a new message may be nested
    ``batch_max``        messages in one batch
    ``body_seconds``     for a body to arrive, and for a client to take its answer
    ``request_seconds``  for a whole request; a request that has not begun its commit by then is dropped
    ``concurrency``      requests at work at the same time; further ones get 503
    ``connections``      open connections; a further one takes the place of the one that waits longest for a request
    ``group_max``        messages that share one commit
    """

    body_max: Size = 1_048_576
    headers_max: Size = 100
    header_bytes_max: Size = 16_384
    json_depth_max: Size = 64
    batch_max: Size = 1_000
    body_seconds: Seconds = 10.0
    request_seconds: Seconds = 30.0
    concurrency: Size = 500
    connections: Size = 1_000
    group_max: Size = 500


class TokenBucket:
    """Passes ``rate`` messages a second, and ``burst`` of them at once. ``monotonic`` returns seconds."""

    def __init__(self, rate: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._tokens = burst
        self._filled_at = monotonic()

    def take(self, count: int) -> float:
        """Take ``count`` tokens and return 0, or take none and return the seconds until a retry may pass.

        A full bucket passes any count, and is in debt then, or a batch above ``burst`` would never pass.
        """
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        wanted = min(float(count), self._burst)
        if self._tokens >= wanted:
            self._tokens -= count
            return 0.0
        return (wanted - self._tokens) / self._rate
