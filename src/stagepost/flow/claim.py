"""A claim on a message: the recorded fields, and the fence that every later write checks."""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """A message claimed by an owner.

    ``row``         the queue row. With ``owner`` and ``deliveries`` it is the fence: if the three no longer match, the
                    message belongs to another owner.
    ``deliveries``  the number of claims on the message so far. It grows with each claim, so it is the fencing token.
                    Above 1, a handler *may* have seen the message, but none has committed it.
    ``failures``    attempts that ended with a recorded failure
    ``deaths``      attempts during which the process died
    ``envelope``    the received bytes
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
