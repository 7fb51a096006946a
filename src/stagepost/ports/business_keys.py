"""Capability: business keys, by which a stage recognises that another message asks for what it has done already."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class KeyRow(NamedTuple):
    """A key to admit, and the message that has it.

    ``key``     a JSON array of the type's name and the key's values
    ``digest``  digest of the message's type and canonical body
    ``reply``   the encoded reply of the stage, if it is known by now
    """

    stage: str
    key: str
    message_id: str
    digest: str
    handled_at: int
    reply: bytes | None


class HandledKey(NamedTuple):
    """An admitted key; ``reply`` is None where the stage itself gave no reply."""

    message_id: str
    digest: str
    reply: bytes | None


class BusinessKeys(Protocol):
    """The business keys' part of a session. Writes happen in its open transaction."""

    def admit(self, row: KeyRow) -> bool:
        """Insert the row. Returns False where the stage handled a message with this key before.

        Raises ``StoreContention`` where another transaction handles such a message and does not end soon.
        """

    def keep(self, stage: str, key: str, reply: bytes) -> None:
        """Store the stage's reply in an admitted row."""

    def find(self, stage: str, key: str) -> HandledKey | None:
        """Return the row of a key; None where no message with it was handled."""
