"""Replace a dead letter by an edited message, which has a new id and goes to the same stage.

The logs, the sender, and perhaps an external system that the stage called know the old id. Under that id, the edited
message would look like the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from stagepost.flow.codec import decode, encode_envelope, field_names
from stagepost.flow.envelope import NOTHING, Envelope, Message
from stagepost.flow.errors import Undecodable
from stagepost.ports.dead_letters import KeptLetter
from stagepost.recovery.editing import EditRefused
from stagepost.transaction.enqueueing import line_of_letter, sent_line
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.stage import Stage
from stagepost.transaction.undoing import dead_undo, open_effects

_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_fits(stage: Stage, messages: Sequence[Message], before: Sequence[Message]) -> None:
    """Check that the stage can decode the edited messages.

    Raises ``EditRefused`` if it cannot, and for a field that is neither in ``before`` nor in the stage's type.
    """
    state_type = stage.position.state_type
    try:
        for each in messages:
            decode(each.body, stage.handlers_of(each)[0].message_type)
            if state_type is not None and bytes(each.state) != bytes(NOTHING):
                decode(each.state, state_type)
    except Undecodable as error:
        raise EditRefused(f"{stage.address} could not read it: it {error}. Nothing was changed.") from error
    for each, old in zip(messages, before, strict=True):
        message_type = stage.handlers_of(each)[0].message_type
        needed, optional = field_names(message_type)
        known = [*needed, *optional]
        unknown = sorted(_names_in(each) - _names_in(old) - set(known))
        if unknown:
            raise EditRefused(
                f"{message_type.__qualname__} has no {unknown[0]}; it has {', '.join(known)}. Nothing was changed."
            )


def _names_in(message: Message) -> set[str]:
    """Return the names of the fields of a body; a body that is a list has none."""
    try:
        return set(_names.decode(message.body))
    except msgspec.ValidationError:
        return set()


def edit(
    queue_commit: QueueCommit,
    kept: KeptLetter,
    envelope: Envelope,
    messages: tuple[Message, ...],
    *,
    message_id: str,
    who: str,
) -> bool:
    """Send ``messages`` in place of the letter's own. Returns False if the letter no longer exists.

    Raises ``EditRefused`` for a letter whose effects are not undone yet.

    ``envelope`` is the letter's. Its other fields stay unchanged, except for the ids and ``sent_at``.
    """
    old = kept.letter
    session = queue_commit.session
    left = open_effects(queue_commit.effects, old)
    if left:
        undo = dead_undo(session, old, left)
        state = "is being undone: try again when that has ended"
        if undo is not None:
            state = f"is not undone, because that order is the dead letter {undo.id}: replay {undo.id} first"
        raise EditRefused(f"the effect {left[0].id.name} of the dead letter {kept.id} {state}. Nothing was changed.")
    with committing(session):
        now = queue_commit.clock.now()
        changed = msgspec.structs.replace(
            envelope, message_id=message_id, cause_id=old.message_id, sent_at=now, messages=messages
        )
        data = encode_envelope(changed)
        # The deliveries start again. The deaths do not, because the unchanged part may be what made the process die.
        new = replace(old, message_id=message_id, envelope=data, deliveries=0)
        if not session.dead_letters.remove(kept.id):
            return False
        queue_commit.revive(new)
        session.journal.record(
            [
                line_of_letter("edited", old, now, queue_commit.node, f"by {who}, into {message_id}"),
                # The journal names the old message's stage as the sender.
                sent_line(changed, old.stage, len(data), now, queue_commit.node, old.stage),
            ]
        )
        return True
