"""A message as its owner holds it: what a claim put on record, and the fence that every later write checks."""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """
    ``row``         the queue row; with ``owner`` and ``deliveries`` the fence: where the three no longer match, the
                    message belongs to somebody else
    ``deliveries``  how often it was claimed; grows with each claim, so it is the fencing token
    ``failures``    attempts that ended and said so
    ``deaths``      attempts during which the process died
    ``envelope``    the bytes as they came
    """

    row: int
    owner: str
    deliveries: int
    stage: str
    message_id: str
    flow_id: str
    failures: int
    deaths: int
    origin_at: int
    envelope: bytes

    @property
    def attempt(self) -> int:
        return self.failures + self.deaths + 1

    @property
    def is_redelivery(self) -> bool:
        """It was claimed before. A handler *may* have seen it; none has committed it."""
        return self.deliveries > 1
