"""Editing a dead letter: a new message, under a new id, takes its place and goes where the old one stood.

What the old id stands for has been seen: in logs, by whoever sent it, perhaps by a stage that half did its work outside
the database. Other content under the same id would be another message that looks like it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from stagepost.flow.clock import Clock
from stagepost.flow.codec import decode, field_names
from stagepost.flow.envelope import NOTHING, Envelope, Message, encode_envelope
from stagepost.flow.errors import Undecodable
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import DeadLetter
from stagepost.recovery.editing import EditRefused
from stagepost.recovery.letters import KeptLetter
from stagepost.transaction.reviving import deaths_kept, waypoint_of
from stagepost.transaction.seams import Session, Transport
from stagepost.transaction.stage import Stage

_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_fits(stage: Stage, messages: Sequence[Message], before: Sequence[Message]) -> None:
    """Raises ``EditRefused`` for what the stage would not be able to read, and for a field that was not there
    ``before`` and that it would not look at."""
    state_type = stage.position.state_type
    try:
        for each in messages:
            decode(each.body, stage.message_type)
            if state_type is not None and bytes(each.state) != bytes(NOTHING):
                decode(each.state, state_type)
    except Undecodable as error:
        raise EditRefused(f"{stage.address} could not read it: it {error}. Nothing was changed.") from error
    needed, optional = field_names(stage.message_type)
    known = [*needed, *optional]
    for each, old in zip(messages, before, strict=True):
        unknown = sorted(_names_in(each) - _names_in(old) - set(known))
        if unknown:
            raise EditRefused(
                f"{stage.message_type.__qualname__} has no {unknown[0]}; it has {', '.join(known)}. Nothing was "
                "changed."
            )


def _names_in(message: Message) -> set[str]:
    """None in what is written as a list."""
    try:
        return set(_names.decode(message.body))
    except msgspec.ValidationError:
        return set()


def edit(
    session: Session,
    transport: Transport,
    kept: KeptLetter,
    envelope: Envelope,
    messages: tuple[Message, ...],
    *,
    message_id: str,
    clock: Clock,
    node: str,
    who: str,
) -> bool:
    """Put ``messages`` in the place of the letter's own. False where the letter is no longer there.

    ``envelope`` is the letter's; what is not in its messages stays as it was.
    """
    old = kept.letter
    session.begin()
    try:
        now = clock.now()
        changed = msgspec.structs.replace(
            envelope, message_id=message_id, cause_id=old.message_id, sent_at=now, messages=messages
        )
        data = encode_envelope(changed)
        # Its deliveries are none of the new one's, but what made its process die may be in what was not changed.
        new = replace(old, message_id=message_id, envelope=data, deliveries=0)
        if not session.exhume(kept.id):
            return False
        transport.revive(new, deaths=deaths_kept(old))
        session.record(
            [
                waypoint_of(old, "edited", now, node, f"by {who}, into {message_id}"),
                _sent(changed, old, len(data), node),
            ]
        )
        session.commit()
        return True
    finally:
        session.rollback()


def _sent(envelope: Envelope, old: DeadLetter, size: int, node: str) -> Waypoint:
    """As if the old message's stage had sent it."""
    return Waypoint(
        "sent",
        envelope.sent_at,
        node,
        old.stage,
        envelope.message_id,
        old.flow_id,
        0,
        old.origin_at,
        old.message_id,
        envelope.kind,
        envelope.ordinal,
        None,
        size,
        old.stage,
    )
