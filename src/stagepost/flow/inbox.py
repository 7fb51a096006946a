"""Which messages a stage has handled, and what is held to be sent: the two ends of a stage whose queue is elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from stagepost.flow.envelope import decode_envelope
from stagepost.flow.errors import StagepostError
from stagepost.flow.initiation import Acceptance, Outgoing


class InboxRow(NamedTuple):
    """``digest`` is of the message's bytes; ``leased_until``: until then only who handles it sends what it
    produced."""

    stage: str
    message_id: str
    digest: str
    handled_at: int
    leased_until: int


class Handled(NamedTuple):
    """What an inbox knows of a message: ``produced`` is None once it has been sent."""

    digest: str
    produced: bytes | None


class AlreadyHandled(StagepostError):
    """Told to the attempt by its inbox; no handler runs."""

    code = "already-handled"

    def __init__(self, handled: Handled) -> None:
        self.handled = handled
        super().__init__("this message was handled before by this stage")


# For what is new: the clock of whoever relays it may be another one.
DUE_AT_ONCE = 0


class Held(NamedTuple):
    """A flow that was started and has not reached the queue yet. ``attempts``: how often the
    queue refused it."""

    id: int
    acceptance: Acceptance
    data: bytes
    node: str
    attempts: int


def held_of(
    held_id: int,
    scope: str,
    key: str,
    digest: str,
    run_id: str | None,
    due_at: int | None,
    topic: str | None,
    node: str,
    data: bytes,
    attempts: int,
) -> Held:
    """As a store's row has it."""
    acceptance = Acceptance(scope, key, digest, Outgoing(decode_envelope(data), due_at, topic), run_id)
    return Held(held_id, acceptance, data, node, attempts)


class Backlog(NamedTuple):
    """``oldest_at``: when the oldest of them was accepted; None for none."""

    size: int
    oldest_at: int | None


NO_BACKLOG = Backlog(0, None)
