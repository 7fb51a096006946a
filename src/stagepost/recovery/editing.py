"""What of a dead letter's envelope people may change, as JSON that they can read, and what they made of it.

Bodies and states are passed on as they were written, digit by digit: only what was changed differs.
"""

from __future__ import annotations

import msgspec

from stagepost.flow.envelope import NOTHING, Envelope, Message, decode_envelope
from stagepost.flow.errors import StagepostError, Undecodable
from stagepost.recovery.deadletter import DeadLetter

INDENT = 2
COMPACT = -1

Json = msgspec.Raw | bytes


class EditRefused(StagepostError):
    """The letter cannot be edited, or not into that; nothing was changed."""

    code = "edit-refused"


class EditedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``state`` is what the stage finds; null where it begins with none."""

    type: str
    body: msgspec.Raw
    state: msgspec.Raw = NOTHING


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: tuple[EditedMessage, ...]


_decoder = msgspec.json.Decoder(Document)
_containers = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])


def envelope_of(letter: DeadLetter) -> Envelope:
    """Raises ``EditRefused`` for what is no envelope, or is another stage's: no edit makes it run."""
    try:
        envelope = decode_envelope(letter.envelope)
    except Undecodable as error:
        raise EditRefused(
            f"what came is {error}. There is nothing in it to edit; it is kept as it came. Have its sender "
            "send it anew."
        ) from error
    if envelope.to != letter.stage:
        raise EditRefused(
            f"what came to {letter.stage} is addressed to {envelope.to}, which no edit changes. Have its sender send "
            "it anew."
        )
    return envelope


def document_of(envelope: Envelope) -> str:
    """Raises ``EditRefused`` for a body or a state that is not UTF-8, as only foreign senders write it."""
    messages = tuple(EditedMessage(each.type, each.body, each.state) for each in envelope.messages)
    try:
        return msgspec.json.format(msgspec.json.encode(Document(messages)), indent=INDENT).decode() + "\n"
    except UnicodeDecodeError as error:
        raise EditRefused(f"what came cannot be shown as text, so it is kept as it came: {error}") from error


def edited_messages(envelope: Envelope, document: str) -> tuple[Message, ...] | None:
    """The messages as they shall be; None where that is what they are. Raises ``EditRefused``."""
    wanted = _read(document).messages
    if [each.type for each in wanted] != [each.type for each in envelope.messages]:
        raise EditRefused(
            f"{', '.join(each.type for each in envelope.messages)} came, and {', '.join(each.type for each in wanted)} "
            "would go: only bodies and states can be edited, neither the types of the messages nor their number."
        )
    made = tuple(_made(old, new) for old, new in zip(envelope.messages, wanted, strict=True))
    return None if made == envelope.messages else made


def with_value(document: str, assignment: str) -> str:
    """``path=json`` written into it, such as ``messages.0.body.amount=12``. Raises ``EditRefused``."""
    path, separator, value = assignment.partition("=")
    if not separator or not path:
        raise EditRefused(f"{assignment!r} is no PATH=JSON, such as messages.0.body.amount=12")
    _check_json(document, "nothing can be set in what is no JSON")
    _check_json(value, f"{assignment!r} does not end in JSON (a text needs its quotes)")
    return msgspec.json.format(
        _replaced(document.encode(), path.split("."), value.encode(), path), indent=INDENT
    ).decode()


def _made(old: Message, new: EditedMessage) -> Message:
    """What is not changed keeps its very bytes."""
    body = old.body if _compact(old.body) == _compact(new.body) else _compact(new.body)
    state = old.state if _compact(old.state) == _compact(new.state) else _compact(new.state)
    return Message(old.type, body, state)


def _compact(json: Json) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.format(json, indent=COMPACT))


def _replaced(json: Json, path: list[str], value: bytes, whole: str) -> bytes:
    if not path:
        return value
    name, *rest = path
    try:
        inside = _containers.decode(json)
    except msgspec.ValidationError:
        raise EditRefused(f"{whole}: there is nothing named {name!r} where a plain value is") from None
    if isinstance(inside, list):
        if not name.isdecimal() or int(name) >= len(inside):
            raise EditRefused(f"{whole}: {name!r} is none of the {len(inside)} places of that list, counted from 0")
        inside[int(name)] = msgspec.Raw(_replaced(inside[int(name)], rest, value, whole))
    else:
        if name not in inside and rest:
            raise EditRefused(f"{whole}: there is no {name!r}; there are {', '.join(inside) or 'none'}")
        inside[name] = msgspec.Raw(_replaced(inside.get(name, NOTHING), rest, value, whole))
    return msgspec.json.encode(inside)


def _read(document: str) -> Document:
    try:
        return _decoder.decode(document)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise EditRefused(f"that is not the letter's JSON any more: {error}") from error


def _check_json(text: str, otherwise: str) -> None:
    try:
        msgspec.json.decode(text.encode(), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise EditRefused(f"{otherwise}: {error}") from error
