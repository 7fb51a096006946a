"""Finding the dead letters that stand where replies to this process would have come from.

The envelope's call stack says so: what a side branch sends carries no frame of the process that asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from stagepost.app.asking import Asked
from stagepost.flow.clock import Clock
from stagepost.flow.envelope import Frame, decode_envelope
from stagepost.flow.errors import Undecodable
from stagepost.recovery.deadletter import DeadLetter
from stagepost.recovery.letters import Selection
from stagepost.transaction.seams import Reader

LOOK_SECONDS = 0.5

_token = msgspec.json.Decoder(str)


class Deaths:
    """``address`` is where the replies go. A letter is read once while its flow is waited for."""

    def __init__(self, reader: Reader, address: str, clock: Clock) -> None:
        self._reader = reader
        self._address = address
        self._clock = clock
        self._looked_at = -math.inf
        self._seen: set[int] = set()

    @property
    def is_to_look(self) -> bool:
        return self._clock.monotonic() - self._looked_at > LOOK_SECONDS

    def look(self, waiting: Sequence[Asked[Any]]) -> None:
        """End the wait of each request whose reply a dead letter owes. Raises ``StoreError``."""
        self._looked_at = self._clock.monotonic()
        found = set(self._reader.letter_ids(sorted({each.flow_id for each in waiting}))) if waiting else set()
        by_token = {each.token: each for each in waiting}
        for new in sorted(found - self._seen):
            for kept in self._reader.letters(Selection("id", new)):
                for token in self._owed(kept.letter) & by_token.keys():
                    by_token[token].die(kept)
        self._seen = found

    def _owed(self, letter: DeadLetter) -> set[str]:
        """Return the tokens of the requests that the message would have answered."""
        try:
            envelope = decode_envelope(letter.envelope)
        except Undecodable:
            return set()
        # A reply that could not be sent has left the stack: it carries its own token.
        itself = [Frame(envelope.to, each.state) for each in envelope.messages]
        return {token_of(each.state) for each in (*envelope.stack, *itself) if each.to == self._address}


def token_of(state: msgspec.Raw) -> str:
    """Return the token that a request sent along; empty where ``state`` is something else."""
    try:
        return _token.decode(state)
    except msgspec.DecodeError:
        return ""
