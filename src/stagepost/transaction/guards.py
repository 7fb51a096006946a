"""Guards of single messages: how a stage recognises one in an envelope that another envelope brought before.

Such a message has a business key, or an id of its own in an envelope of several. The guard of an envelope's id is in
``inbox_guard``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stagepost.flow import codec
from stagepost.flow.codec import digest, joined
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.errors import KeyConflict, KeyDuplicate, StoreContention, StoreUnavailable, Undecodable
from stagepost.ports.business_keys import HandledKey, KeyRow
from stagepost.ports.session import Session
from stagepost.transaction.stage import Stage

KEY_LENGTH_MAX = 1_000

_reply = msgspec.json.Decoder(Message)


class KeyTaken(StoreContention):
    """A run that looked for no earlier message ended, and there is one."""


class KeyGuard:
    """The business keys of the messages of one envelope, on the session of the stage's data.

    ``has_ids`` says that the own id of a message serves as its key, where its type has none. The constructor raises
    ``Undecodable``, and ``KeyConflict`` where two messages of the envelope differ under one key.
    """

    def __init__(self, stage: Stage, envelope: Envelope, session: Session, now: int, *, has_ids: bool = False) -> None:
        self._session = session
        self._envelope = envelope
        # By the message's place in the envelope; None for a message whose type has no key.
        self._rows = [_row(stage, envelope, each, now, has_ids=has_ids) for each in envelope.messages]
        self._handled: dict[str, HandledKey] = {}
        # The places of the messages that bring a key first, and their replies.
        self._first: dict[str, int] = {}
        self._replies: dict[str, bytes] = {}
        for index, row in enumerate(self._rows):
            if row is not None:
                first = self._rows[self._first.setdefault(row.key, index)]
                assert first is not None
                _check_content(row, first.message_id, first.digest)

    def admit(self) -> None:
        """Insert the keys before any handler runs, and note which ones were handled.

        Raises ``KeyConflict``, and ``StoreContention`` where another transaction handles such a message.
        """
        for row in self._new_rows():
            if self._session.business_keys.admit(row):
                continue
            handled = self._session.business_keys.find(row.stage, row.key)
            if handled is None:
                raise StoreUnavailable(f"the row of the business key {row.key} at {row.stage} was purged meanwhile")
            self._note(row, handled)

    def look(self) -> bool:
        """Say whether another message with one of the keys was handled, and note it. Raises ``KeyConflict``."""
        for row in self._new_rows():
            handled = self._session.business_keys.find(row.stage, row.key)
            if handled is not None:
                self._note(row, handled)
        return bool(self._handled)

    def admit_late(self) -> None:
        """Insert the keys after all handlers have run, with their replies.

        Raises ``KeyTaken`` where one was handled before. The attempt is then repeated, and admits the keys first.
        """
        for row in self._new_rows():
            if not self._session.business_keys.admit(row._replace(reply=self._replies.get(row.key))):
                raise KeyTaken(f"another message with the business key {row.key} was handled at {row.stage}")

    def keep(self) -> None:
        """Store the replies of the keys that ``admit`` inserted. Raises ``KeyDuplicate``: see ``_check_callers``."""
        self._check_callers()
        for row in self._new_rows():
            if row.key in self._replies:
                self._session.business_keys.keep(row.stage, row.key, self._replies[row.key])

    def is_duplicate(self, index: int) -> bool:
        row = self._rows[index]
        return row is not None and (row.key in self._handled or self._first[row.key] != index)

    def stored_reply(self, index: int) -> Message | None:
        """Return the reply to a duplicate: that of the message that was handled. None where its stage gave none."""
        row = self._rows[index]
        assert row is not None
        handled = self._handled.get(row.key)
        data = self._replies.get(row.key) if handled is None else handled.reply
        return None if data is None else _reply.decode(data)

    def note_reply(self, index: int, reply: Message | None) -> None:
        """Note the reply of the stage to a message that is new."""
        row = self._rows[index]
        if row is not None and reply is not None:
            self._replies[row.key] = msgspec.json.encode(reply)

    def _check_callers(self) -> None:
        """Check that the caller of an envelope of duplicates is answered. Raises ``KeyDuplicate``."""
        places = range(len(self._rows))
        if not self._envelope.stack or not all(map(self.is_duplicate, places)):
            return
        if all(self.stored_reply(index) is None for index in places):
            row = self._rows[0]
            assert row is not None
            raise KeyDuplicate(row.stage, row.key, self._handled[row.key].message_id)

    @property
    def detail(self) -> str | None:
        """Say for the journal which keys were duplicates, and whose callers get no reply."""
        places = [index for index, row in enumerate(self._rows) if row is not None and self.is_duplicate(index)]
        if not places:
            return None
        silent = [each for each in places if self._envelope.stack and self.stored_reply(each) is None]
        unanswered = f"; no reply was stored for {self._names(silent)}" if silent else ""
        return f"duplicate of {self._names(places)}{unanswered}"[:200]

    def _names(self, places: Sequence[int]) -> str:
        return ", ".join(dict.fromkeys(row.key for each in places if (row := self._rows[each]) is not None))

    def _new_rows(self) -> list[KeyRow]:
        """Return a row for each key, in the order of the keys, so that two envelopes never wait for each other."""
        rows = [row for index, row in enumerate(self._rows) if row is not None and self._first[row.key] == index]
        return sorted((row for row in rows if row.key not in self._handled), key=lambda row: row.key)

    def _note(self, row: KeyRow, handled: HandledKey) -> None:
        _check_content(row, handled.message_id, handled.digest)
        self._handled[row.key] = handled


def _row(stage: Stage, envelope: Envelope, message: Message, now: int, *, has_ids: bool) -> KeyRow | None:
    """Read a message's key; None if it has none. Raises ``Undecodable``."""
    types = stage.message_types
    name = stage.type_of(message)
    if name in types and name in stage.keys:
        key = _business_key(name, codec.decode(message.body, types[name]), stage.keys)
    elif name in types and has_ids and message.id is not None and stage.guards.get(name) != "none":
        # A business key begins with a bracket.
        key = f"id {message.id}"
    else:
        return None
    content = digest(joined([name], [codec.canonical(message.body, types[name])]))
    return KeyRow(stage.address, key, envelope.message_id, content, now, None)


def _business_key(name: str, value: object, keys: Mapping[str, Sequence[str]]) -> str:
    values = [getattr(value, field) for field in keys[name]]
    if None in values:
        missing = keys[name][values.index(None)]
        raise Undecodable(f"the field {missing!r} of a {name} is null, and it is part of its business key")
    key = codec.encode_values([name, *values]).decode()
    if len(key) > KEY_LENGTH_MAX:
        raise Undecodable(f"the business key of a {name} has {len(key)} characters, more than {KEY_LENGTH_MAX}")
    return key


def _check_content(row: KeyRow, message_id: str, content: str) -> None:
    if row.digest != content:
        raise KeyConflict(row.stage, row.key, message_id, content, row.digest)
