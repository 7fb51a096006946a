"""The parts of a stage's run on an envelope that its contexts share, and the limits of a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import msgspec

from stagepost.flow.amounts import detail_of_amount
from stagepost.flow.effects import Effect, UndoOrder, UndoRequest
from stagepost.flow.envelope import Message
from stagepost.flow.errors import Refuse
from stagepost.flow.initiation import Initiation, Outgoing, encode_property
from stagepost.flow.rows import Rows

HOPS_MAX = 200
DEPTH_MAX = 35


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a flow, which stop one that runs in a circle.

    ``hops`` bounds the stages in all, ``depth`` the requests inside requests.
    """

    hops: int = HOPS_MAX
    depth: int = DEPTH_MAX


class OpenUnitOfWork(Protocol):
    """The part of the stage's transaction that a handler may use. Its first use begins the transaction."""

    @property
    def connection(self) -> Any: ...

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows: ...

    @property
    def user_session(self) -> Any:
        """The user's own session, such as an ORM's. Raises ``IllegalCall``."""

    @property
    def document(self) -> dict[str, Any]:
        """The message's document. Raises ``IllegalCall`` if it has none."""

    def service(self, wanted: Any) -> Any:
        """Return the scope's service of a type. Raises ``IllegalCall`` if the app has no scopes."""

    def effect(self, effect: Effect[Any, Any], index: int, handler: str, ordinal: int, request: Any) -> Any:
        """Return the result of an effect, and call it only if no result is known.

        ``index``, ``handler`` and ``ordinal`` are those of an ``EffectId``.
        """

    def effect_to_undo(self, effect: Effect[Any, Any], order: UndoOrder) -> tuple[int, UndoRequest] | None:
        """Return the row of an effect that is to be undone, and the request of its undo; None for nothing to do."""

    def effect_undone(self, row: int) -> None:
        """Record that an effect was undone."""

    def mark_sent(self, stage: str, message_id: str) -> None:
        """Mark an inbox row whose messages were sent."""

    def check_caller(self, call: str) -> None:
        """Check the caller. Raises ``IllegalCall`` in a thread other than the handler's, and in a forked process."""

    def initiate(self, *, independent: bool) -> Initiation: ...

    def depart(self) -> int | None:
        """Note on the disk that the message may leave the store from now on: see ``departing.depart``."""

    def end_departure(self) -> None:
        """Forget the departure with the attempt's end: see ``departing.end_departure``."""


class Properties(MutableMapping[str, Any]):
    """The properties of a flow: JSON values by name, which every later message of the flow carries.

    Each change first calls ``check`` with its name. ``check`` raises ``IllegalCall`` if no change is allowed.
    """

    def __init__(self, encoded: dict[str, msgspec.Raw], check: Callable[[str], None]) -> None:
        self._encoded = encoded
        self._check = check

    def __getitem__(self, name: str) -> Any:
        return msgspec.json.decode(self._encoded[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._check(f"properties[{name!r}]")
        self._encoded[name] = encode_property(name, value)

    def __delitem__(self, name: str) -> None:
        self._check(f"properties[{name!r}]")
        del self._encoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._encoded)

    def __len__(self) -> int:
        return len(self._encoded)


@dataclass(slots=True)
class HandlerResult:
    """The result of a stage's handlers on one envelope: their contexts collect it, and the transaction takes it.

    ``refusal`` and ``failure_reply`` are set where a handler rolls back. ``report`` is sent with the dead letter of a
    refusal, and ``detail`` is the journal's text of a success. ``amount`` is the sum of the recorded amounts.
    ``ordinals`` counts the sends of all handlers by kind and address.
    """

    outgoing: list[Outgoing] = field(default_factory=list)
    callbacks: list[Callable[[], object]] = field(default_factory=list)
    ordinals: dict[tuple[str, str], int] = field(default_factory=dict)
    refusal: Refuse | None = None
    failure_reply: Outgoing | None = None
    report: Outgoing | None = None
    detail: str | None = None
    amount: Decimal | None = None
    is_closed: bool = False

    @property
    def is_to_commit(self) -> bool:
        """Say whether no handler decided to roll back, even if it then caught the error of its call."""
        return self.refusal is None and self.failure_reply is None

    @property
    def detail_with_amount(self) -> str | None:
        """The text of the journal's line: the amount first, so that no other text looks like one."""
        texts = [None if self.amount is None else detail_of_amount(self.amount), self.detail]
        return "; ".join(filter(None, texts)) or None


@dataclass(slots=True)
class MessageRun:
    """The part of a message's run that all its handlers share.

    ``terminal``    the name of the call that ended the run: request, next or reply
    ``reply``       the encoded reply, also if no caller waits for it
    ``properties``  the flow's properties; None while no handler used them
    """

    state: Any = None
    terminal: str | None = None
    reply: Message | None = None
    properties: dict[str, msgspec.Raw] | None = None
