"""Edit the messages of a dead letter as a JSON document.

Bodies and states that the editor did not change keep their bytes, digit by digit.
"""

from __future__ import annotations

import msgspec

from stagepost.flow.codec import decode_envelope
from stagepost.flow.envelope import NOTHING, Envelope, Message
from stagepost.flow.errors import StagepostError, Undecodable
from stagepost.flow.target import is_outbound
from stagepost.ports.dead_letters import DeadLetter

INDENT = 2
COMPACT = -1

Json = msgspec.Raw | bytes


class EditRefused(StagepostError):
    """The letter or this edit of it is not editable; nothing was changed."""

    code = "edit-refused"


class EditedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message in the document. ``state`` is the state that the stage gets; null for an empty one."""

    type: str
    body: msgspec.Raw
    state: msgspec.Raw = NOTHING


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: tuple[EditedMessage, ...]


_decoder = msgspec.json.Decoder(Document)
_containers = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])


def envelope_of(letter: DeadLetter) -> Envelope:
    """Return the envelope of a letter.

    Raises ``EditRefused`` if the bytes are not an envelope, or are addressed to another stage, because no edit could
    make such a letter run.
    """
    try:
        envelope = decode_envelope(letter.envelope)
    except Undecodable as error:
        raise EditRefused(
            f"the letter is {error}. It has no messages to edit, and stays unchanged. Have its sender send it again."
        ) from error
    if envelope.to != letter.stage and not is_outbound(letter.stage):
        raise EditRefused(
            f"the letter of {letter.stage} is addressed to {envelope.to}, which no edit changes. Have its sender send "
            "it again."
        )
    return envelope


def document_of(envelope: Envelope) -> str:
    """Write an envelope's messages as a document.

    Raises ``EditRefused`` for a body or a state that is not UTF-8; only foreign senders write one.
    """
    messages = tuple(EditedMessage(each.type, each.body, each.state) for each in envelope.messages)
    try:
        return msgspec.json.format(msgspec.json.encode(Document(messages)), indent=INDENT).decode() + "\n"
    except UnicodeDecodeError as error:
        raise EditRefused(f"the letter cannot be shown as text, so it stays unchanged: {error}") from error


def edited_messages(envelope: Envelope, document: str) -> tuple[Message, ...] | None:
    """Return the edited messages, or None if the document changes nothing. Raises ``EditRefused``."""
    wanted = _read(document).messages
    if [each.type for each in wanted] != [each.type for each in envelope.messages]:
        raise EditRefused(
            f"the letter has {', '.join(each.type for each in envelope.messages)}, and the document has "
            f"{', '.join(each.type for each in wanted)}: only bodies and states can be edited, neither the types of "
            "the messages nor their number."
        )
    made = tuple(_made(old, new) for old, new in zip(envelope.messages, wanted, strict=True))
    return None if made == envelope.messages else made


def with_value(document: str, assignment: str) -> str:
    """Return the document with a value set by ``path=json``, such as ``messages.0.body.amount=12``.

    Raises ``EditRefused``.
    """
    path, separator, value = assignment.partition("=")
    if not separator or not path:
        raise EditRefused(f"{assignment!r} is not PATH=JSON, such as messages.0.body.amount=12")
    _check_json(document, "the document is not JSON, so no value can be set in it")
    _check_json(value, f"{assignment!r} does not end in JSON (a text needs its quotes)")
    return msgspec.json.format(
        _replaced(document.encode(), path.split("."), value.encode(), path), indent=INDENT
    ).decode()


def _made(old: Message, new: EditedMessage) -> Message:
    """Build the edited message; an unchanged body or state keeps its bytes."""
    body = old.body if _compact(old.body) == _compact(new.body) else _compact(new.body)
    state = old.state if _compact(old.state) == _compact(new.state) else _compact(new.state)
    return Message(old.type, body, state, old.id)


def _compact(json: Json) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.format(json, indent=COMPACT))


def _replaced(json: Json, path: list[str], value: bytes, whole: str) -> bytes:
    if not path:
        return value
    name, *rest = path
    try:
        inside = _containers.decode(json)
    except msgspec.ValidationError:
        raise EditRefused(f"{whole}: {name!r} names a part of a plain value, which has no parts") from None
    if isinstance(inside, list):
        if not name.isdecimal() or int(name) >= len(inside):
            raise EditRefused(f"{whole}: {name!r} is not an index of a list of {len(inside)}, counted from 0")
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
        raise EditRefused(f"the document is no longer the letter's JSON: {error}") from error


def _check_json(text: str, otherwise: str) -> None:
    try:
        msgspec.json.decode(text.encode(), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise EditRefused(f"{otherwise}: {error}") from error
