"""A stage as the transaction runs it: its position, its handlers and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stagepost.flow.claim import Claim
from stagepost.flow.codec import decode_envelope
from stagepost.flow.effects import Effect
from stagepost.flow.envelope import Message
from stagepost.flow.errors import Undecodable
from stagepost.flow.target import Position
from stagepost.recovery.pausing import PAUSE_AFTER
from stagepost.recovery.redelivery import Redelivery
from stagepost.transaction.arrivals import ForeignMessages
from stagepost.transaction.document_rules import DocumentRule

Mode = Literal["single", "outbox", "two_phase", "best_effort", "transport"]
# A stage of these modes consumes from the broker itself.
DIRECT: frozenset[Mode] = frozenset({"best_effort", "transport"})
# How a stage recognises what it has handled. ``proactive``: first, before it runs. ``reactive``: at the end, or after a
# failure. ``none``: a run may repeat, and only what it sent is remembered.
Guard = Literal["none", "reactive", "proactive"]
# From the weakest to the strongest.
GUARDS: tuple[Guard, ...] = ("none", "reactive", "proactive")

# A worker claims this many messages ahead, so a larger batch would never fill.
BATCH_MAX = 100


EFFECTS_NEED = (
    "Effects need a stage whose message commits with its data: mode single, or two_phase where queue= names another "
    "database, without a batch, a business key or a document. Give the call a stage of its own there."
)


def without_effects(place: str) -> str:
    """Return the text of the error for a stage that calls an effect and may not."""
    return f"{place} calls an effect, which its stage cannot have. {EFFECTS_NEED}"


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler of a stage.

    ``position``     the stage's; its ``handler`` is the name of a handler that was added to the stage's own
    ``takes_state``  whether the function is ``(ctx, state, message)``, and not ``(ctx, message)``
    ``services``     the types of its services, by the names of its parameters
    """

    position: Position
    message_type: type
    function: Callable[..., Any]
    takes_state: bool
    services: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage.

    ``handlers``            in the order in which they run; the first one is the stage's own
    ``by_type``             the handlers by the name of the message's type; None if the stage takes one type alone,
                            whose name a sender may have chosen otherwise
    ``time_limit_seconds``  the limit of one attempt, without its waits for the database's write lock
    ``declared_at``         ``file:line``
    ``mode``                None for the default mode of the queue's place: see ``app.modes``
    ``pause_after``         how many messages must fail in a row before the stage pauses; 0 for never
    ``documents``           where the document of each type of message is; None if the data is in the database
    ``undoes``              the name of the effect that it undoes, for a stage of Stagepost's own
    ``foreign``             the messages without our envelope that it takes from a broker, if any
    ``effects``             the effects that its handlers name; helpers of theirs may call others
    ``batch``               how many messages may share a transaction; 1 gives each its own
    ``guards``              by the name of the message's type; empty for the default of its mode: see docs/guards.md
    ``keys``                the fields of the business key, by the name of the message's type
    ``threads``             the number of its own threads in each worker process; None if it shares those of all stages
    """

    position: Position
    handlers: Sequence[Handler]
    by_type: Mapping[str, Sequence[Handler]] | None
    is_async: bool
    redelivery: Redelivery
    time_limit_seconds: float
    declared_at: str
    mode: Mode | None = None
    pause_after: int = PAUSE_AFTER
    batch: int = 1
    effects: Sequence[Effect[Any, Any]] = ()
    undoes: str | None = None
    foreign: ForeignMessages | None = None
    documents: Mapping[type, DocumentRule | None] | None = None
    guards: Mapping[str, Guard] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    threads: int | None = None

    @property
    def address(self) -> str:
        return self.position.address

    @property
    def message_types(self) -> dict[str, type]:
        """The types that its handlers take, by their names."""
        return {each.message_type.__name__: each.message_type for each in self.handlers}

    @property
    def is_guarded(self) -> bool:
        """Say whether it declares a guard that recognises something, or a business key."""
        return bool(self.keys) or any(each != "none" for each in self.guards.values())

    def type_of(self, message: Message) -> str:
        """Return the name by which the stage declares a message's type. A stage of one type takes it by any name."""
        types = self.message_types
        return message.type if message.type in types or len(types) > 1 else next(iter(types))

    def guard_of(self, claim: Claim) -> Guard | None:
        """Return the strongest guard of the types in a message's envelope; None for the default of the mode."""
        of_all = set(self.guards.values())
        if len(of_all) <= 1:
            return next(iter(of_all), None)
        try:
            messages = decode_envelope(claim.envelope).messages
        except Undecodable:
            # No handler runs for it.
            return None
        found = [self.guards[each.type] for each in messages if each.type in self.guards]
        return max(found, key=GUARDS.index, default=None)

    def handlers_of(self, message: Message) -> Sequence[Handler]:
        """Return the handlers of a message. Raises ``Undecodable`` if the stage has none for its type."""
        if self.by_type is None:
            return self.handlers
        found = self.by_type.get(message.type)
        if found is None:
            raise Undecodable(f"a {message.type!r:.200}, and {self.address} takes {', '.join(self.by_type)}")
        return found
