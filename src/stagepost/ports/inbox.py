"""Capability: the inbox. It keeps which messages were handled, where no queue row is the guard of a message.

Stages whose queue is in another database have it, and stages with a guard that consume from a broker directly.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stagepost.flow.errors import StagepostError
from stagepost.ports.outbox import Backlog


class InboxRow(NamedTuple):
    """A message to admit.

    ``digest``        digest of the envelope's bytes
    ``leased_until``  until then only the process that handles the message sends its messages
    """

    stage: str
    message_id: str
    digest: str
    handled_at: int
    leased_until: int


class Handled(NamedTuple):
    """An inbox row; ``produced`` is None once its messages have been sent."""

    digest: str
    produced: bytes | None


class AlreadyHandled(StagepostError):
    """The inbox has the message; no handler runs."""

    code = "already-handled"

    def __init__(self, handled: Handled) -> None:
        self.handled = handled
        super().__init__("this message was handled before by this stage")


class Inbox(Protocol):
    """The inbox's part of a session. Writes happen in its open transaction."""

    def admit(self, row: InboxRow) -> bool:
        """Insert the row. Returns False where the message was handled before.

        Raises ``StoreContention`` where another transaction handles a copy of the message and does not end soon.
        """

    def keep(self, stage: str, message_id: str, produced: bytes) -> None:
        """Store the produced messages of an admitted row, until it is marked."""

    def find(self, stage: str, message_id: str) -> Handled | None:
        """Return the row of a message; None where it was not handled."""

    def mark(self, stage: str, message_id: str) -> None:
        """Note that the produced messages were sent: the bytes are cleared, the id stays."""

    def take_unsent(self, stage: str, message_id: str) -> bool:
        """Mark a row, and keep its bytes. Returns False for a row that is marked, also by a transaction meanwhile."""

    def unsent(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Return stage and message id of unmarked rows whose lease has ended, those that ended first at the front."""

    def postpone(self, stage: str, message_id: str, until: int) -> None:
        """Extend the lease of a row."""

    def backlog(self) -> Backlog:
        """Count the unmarked rows."""
