"""The steps of an accepted request. Tests kill processes at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum


class GatewayStep(StrEnum):
    """The steps of a request that is accepted.

    ``read``        the body has arrived
    ``valid``       the message has passed all checks
    ``committing``  the transaction of its group is about to begin
    ``committed``   the transaction is committed, and the answer is not sent
    ``answered``    the answer was handed to the server
    """

    READ = "read"
    VALID = "valid"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ANSWERED = "answered"


# It gets the ids of the messages that pass the step together.
GatewayListener = Callable[[GatewayStep, Sequence[str]], None]


def unobserved_gateway(step: GatewayStep, message_ids: Sequence[str]) -> None:
    """Ignore a step: the default listener."""
