"""Capability: the log of effects, in commits of its own.

An effect is a call to something outside that cannot join the stage's transaction. Each call has an *intent*, a line
that is committed before the call begins. The log is used on a session of ``Store.apart``, whose commits need not wait
for the transaction of a stage. Contract suite: ``testing.contract.effects``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from stagepost.flow.effects import UNDO_SUFFIX, EffectId

# "undone": its undo ended. "doubted": it may have been done, and it was not undone.
EffectEnding = Literal["undone", "doubted"]


class Intent(NamedTuple):
    """One call of an effect, written before it began.

    ``token``        the fencing token of the claim that called
    ``owner``        the incarnation of that claim, and ``node`` its process
    ``at``           when it was written (microseconds, UTC)
    ``is_repeat``    an earlier call may have done the same, and nothing outside could tell
    ``is_over``      the attempt that called has ended
    ``is_withdrawn`` the call did nothing
    """

    row: int
    token: int
    owner: str
    node: str
    at: int
    is_repeat: bool
    is_over: bool
    is_withdrawn: bool


@dataclass(frozen=True, slots=True)
class LoggedEffect:
    """An effect of one generation, with its intents, the oldest first.

    ``digest``  of the request
    ``result``  the encoded result; None while it is unknown
    """

    row: int
    id: EffectId
    flow_id: str
    generation: int
    digest: str
    request: bytes
    result: bytes | None
    ending: EffectEnding | None
    intents: Sequence[Intent]

    @property
    def unknown(self) -> list[Intent]:
        """The calls that may have done something, the oldest first. They are unknown as long as there is no result."""
        return [each for each in self.intents if not each.is_withdrawn]

    @property
    def is_open(self) -> bool:
        """Say whether it may be done, and its undo has not ended. The undo of an effect is never open itself."""
        may_be_done = self.result is not None or bool(self.unknown)
        return self.ending is None and may_be_done and not self.id.name.endswith(UNDO_SUFFIX)


class EffectFigures(NamedTuple):
    """``unknown`` counts effects with an intent and without a result, since ``unknown_since`` (microseconds, UTC).

    ``repeated`` counts calls that may have repeated another one, and ``doubted`` the effects that may have been done
    and were not undone.
    """

    unknown: int
    unknown_since: int | None
    repeated: int
    doubted: int


class MessageToken(NamedTuple):
    """The highest token of a message at a stage. Rows are in the order of the first tokens."""

    row: int
    message_id: str
    stage: str
    token: int


NO_EFFECTS = EffectFigures(0, None, 0, 0)


class Effects(Protocol):
    """The log's part of a session. Writes happen in its open transaction; reads need none."""

    def raise_token(self, message_id: str, stage: str, token: int) -> bool:
        """Raise the highest token of a message. Return False, and change nothing, if it is above ``token``."""

    def find(self, wanted: EffectId) -> LoggedEffect | None:
        """Return the latest generation of an effect."""

    def of_message(self, message_id: str, stage: str) -> list[LoggedEffect]:
        """Return all generations of a message's effects, in the order in which they were added."""

    def of_flow(self, flow_id: str) -> list[LoggedEffect]:
        """Return all generations of the effects of a flow, in the order in which they were added."""

    def add(self, wanted: EffectId, flow_id: str, generation: int, digest: str, request: bytes) -> int:
        """Add a generation of an effect, and return its row."""

    def intend(self, effect: int, token: int, owner: str, node: str, at: int, *, is_repeat: bool) -> int:
        """Add an intent to an effect's row, and return the intent's row."""

    def withdraw(self, effect: int, until: int) -> None:
        """Withdraw the intents of an effect up to the row ``until``."""

    def withdraw_one(self, intent: int) -> None:
        """Withdraw one intent."""

    def end_intents(self, message_id: str, stage: str, token: int) -> None:
        """Record that the attempts of these tokens, and of lower ones, have ended."""

    def keep(self, effect: int, result: bytes) -> None:
        """Keep the result of an effect, unless it has one."""

    def end(self, effect: int, ending: EffectEnding | None) -> None:
        """Record how an effect ended that no commit kept; None if a later attempt goes on with it."""

    def figures(self) -> EffectFigures:
        """Count the effects that are in doubt, and the calls that may have repeated another one."""

    def row_bytes(self) -> int:
        """Return about how many bytes an effect with one call takes; 0 if there is none."""

    def flows(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Return effects by their rows beyond ``after``, in order, each with its flow."""

    def remove_flows(self, flow_ids: Sequence[str], until: int) -> int:
        """Remove the effects of these flows up to the row ``until``, with intents and tokens. Returns how many went."""

    def tokens(self, after: int, limit: int) -> list[MessageToken]:
        """Return tokens by their rows beyond ``after``, in order."""

    def remove_tokens(self, tokens: Sequence[MessageToken]) -> int:
        """Remove those of the tokens that were not raised since. Returns how many went."""

    def remove_message(self, message_id: str, stage: str) -> None:
        """Remove the effects of a message, with their intents. Its token stays."""
