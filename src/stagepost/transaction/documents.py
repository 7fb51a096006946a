"""Stages whose data is a document. The document is written by one compare-and-set, before the queue commits.

1. The outgoing messages are kept as a list, under the message and the token of the attempt.
2. The document is written with the message's id and the token in it, if it still has the version that was read.
3. One commit of the queue takes the message and puts the outgoing messages. Then the list is dropped.

If a process dies in between, the next owner of the message *fences* the document: it raises the version, so that no
earlier attempt can write it any more. If the document then has the message's id, its list is sent and no handler runs.
If not, the lists of earlier attempts were never sent, and are dropped.

An attempt reads the document first and then checks that it still owns the message. So a later owner fences after that
read. See docs/documents.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stagepost.flow.claim import Claim
from stagepost.flow.codec import decode, decode_addressed
from stagepost.flow.errors import (
    DocumentFull,
    HandlerError,
    IllegalCall,
    LeaseLost,
    StoreContention,
    StoreError,
    Undecodable,
)
from stagepost.flow.produced import Produced, decode_produced, encode_produced
from stagepost.ports.documents import StoredDocument
from stagepost.ports.inbox import AlreadyHandled, Handled
from stagepost.ports.session import Session
from stagepost.transaction.document_rules import DocumentRule, ProcessedIds
from stagepost.transaction.outcome import Completed
from stagepost.transaction.queue_commit import QueueCommit, Single
from stagepost.transaction.stage import Stage
from stagepost.transaction.steps import Step

# A message for a full document comes again after this time.
PUT_OFF_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """The document of a message. ``list_name`` is the name of the list that the attempt's claim writes."""

    rule: DocumentRule
    key: str
    entry: str
    list_name: str


class KeptList(NamedTuple):
    """The list of the attempt that wrote the document; ``produced`` is None if the store of documents lost it."""

    place: Place
    name: str
    produced: bytes | None


@dataclass(slots=True)
class OpenDocument:
    """A document that a handler works on. ``ids`` are those that the written document keeps."""

    claim: Claim
    place: Place
    version: int
    value: dict[str, Any]
    ids: ProcessedIds


class DocumentMode(Single):
    """The mode of stages with documents, whose queue is in one database. Implements ``mode.TransactionMode``.

    It is used by one thread, for one message at a time.
    """

    def __init__(self, queue_commit: QueueCommit, stages: Mapping[str, Stage]) -> None:
        super().__init__(queue_commit)
        self._stages = stages
        self._open: OpenDocument | None = None
        self._kept: KeptList | None = None

    def recognise(self, claim: Claim) -> None:
        self._open = None
        self._kept = join(self._stages[claim.stage], self._queue_commit, claim)
        if self._kept is None:
            return
        if self._kept.produced is None:
            raise StoreError(
                f"the document {self._kept.place.key} has the id of {claim.message_id}, and its list of outgoing "
                "messages is gone. Was the store of documents restored from an older copy?"
            )
        raise AlreadyHandled(Handled("", self._kept.produced))

    def begin(self, claim: Claim) -> None:
        """Begin nothing: the queue's transaction begins after the document is written, and holds no lock before."""

    def open(self, claim: Claim) -> dict[str, Any]:
        """Return the document of the claimed message, which the handler may change.

        Raises ``LeaseLost``, ``DocumentFull``, ``IllegalCall`` and ``StoreError``.
        """
        if self._open is None or self._open.claim is not claim:
            place = place_of(self._stages[claim.stage], claim)
            if place is None:
                raise IllegalCall(
                    f"{claim.stage} used ctx.document, and this message has no document: put @in_document above its "
                    "handler, and send each of its messages in an envelope of its own."
                )
            stored = place.rule.store.read(place.key)
            # The order matters: an owner that comes after this check fences, and so raises the version read above.
            check_owner(self.session, claim)
            value, ids = place.rule.split(stored.body)
            if len(ids) >= place.rule.ids_max:
                ids = still_needed(self.session, place, ids)
                if len(ids) >= place.rule.ids_max:
                    raise DocumentFull(PUT_OFF_SECONDS, f"the document {place.key} is full of ids still needed")
            self._open = OpenDocument(claim, place, stored.version, value, ids)
        return self._open.value

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        produced = self._queue_commit.produced(claim, completed.outgoing, completed.ms, completed.detail)
        # An attempt that lost its message leaves its list to the next owner.
        self._kept = None
        if self._open is not None and self._open.claim is claim:
            self._write(claim, self._open, encode_produced(produced))
        self._queue_commit.take(claim)
        return self._commit(claim, produced)

    def deliver(self, claim: Claim, produced: Produced) -> None:
        super().deliver(claim, produced)
        kept, self._kept = self._kept, None
        if kept is not None:
            drop_sent(kept, claim)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """Send the list of an attempt that wrote the document, and died before the queue's commit."""
        assert handled.produced is not None, "a document that has the message's id has its list"
        self._queue_commit.take(claim)
        produced = decode_produced(handled.produced)
        self._commit(claim, produced)
        self.deliver(claim, produced)

    def rollback(self) -> None:
        self._open = None
        super().rollback()

    def _write(self, claim: Claim, opened: OpenDocument, content: bytes) -> None:
        place = opened.place
        body = place.rule.joined(opened.value, {**opened.ids, place.entry: (claim.deliveries, claim.flow_id)})
        if not place.rule.store.keep(place.key, place.list_name, content):
            raise StoreContention(f"an earlier try of this attempt left its list of messages at {place.key}")
        self._queue_commit.listener(Step.LISTED, claim)
        if not place.rule.store.write(place.key, body, opened.version):
            place.rule.store.drop(place.key, place.list_name)
            check_owner(self.session, claim)
            raise StoreContention(f"another message changed the document {place.key} meanwhile")
        self._kept = KeptList(place, place.list_name, content)
        self._queue_commit.listener(Step.WRITTEN, claim)

    def _commit(self, claim: Claim, produced: Produced) -> Produced:
        self._queue_commit.put(claim, produced)
        self._queue_commit.listener(Step.RECORDED, claim)
        self._queue_commit.listener(Step.COMMITTING, claim)
        self._queue_commit.commit_completed([claim])
        return produced


def place_of(stage: Stage, claim: Claim) -> Place | None:
    """Return the place of a message's document; None for a message without one, or that cannot be decoded."""
    if stage.documents is None:
        return None
    try:
        envelope = decode_addressed(claim)
        if len(envelope.messages) > 1:
            return None
        (message,) = envelope.messages
        handler = stage.handlers_of(message)[0]
        rule = stage.documents[handler.message_type]
        key = None if rule is None else rule.key_of(decode(message.body, handler.message_type))
    except (Undecodable, HandlerError):
        return None
    if rule is None or key is None:
        return None
    entry = f"{claim.stage} {claim.message_id}"
    return Place(rule, key, entry, f"{claim.deliveries} {entry}")


def join(stage: Stage, queue_commit: QueueCommit, claim: Claim) -> KeptList | None:
    """Fence the message's document, and return the list of the attempt that wrote it. Drop the lists of the others.

    None means that no attempt wrote it, and that no earlier attempt can write it any more. Raises ``LeaseLost`` and
    ``StoreError``.
    """
    place = place_of(stage, claim)
    if place is None:
        return None
    check_owner(queue_commit.session, claim)
    _, ids = place.rule.split(fence(place).body)
    queue_commit.listener(Step.FENCED, claim)
    lists = place.rule.store.lists(place.key)
    written = ids.get(place.entry)
    if written is None:
        for name in lists:
            token, _, entry = name.partition(" ")
            # A later owner may have written a list already, and would miss it.
            if entry == place.entry and int(token) <= claim.deliveries:
                place.rule.store.drop(place.key, name)
        return None
    name = f"{written[0]} {place.entry}"
    if name not in lists:
        # Another owner drops the list after its commit.
        check_owner(queue_commit.session, claim)
    return KeptList(place, name, lists.get(name))


def check_owner(session: Session, claim: Claim) -> None:
    """Raise ``LeaseLost`` if the message belongs to another owner."""
    if not session.queue.holds(claim):
        raise LeaseLost.of(claim.message_id, claim.stage)


def fence(place: Place) -> StoredDocument:
    """Raise the version of a document, and return it. A missing one is created empty."""
    while True:
        stored = place.rule.store.read(place.key)
        if place.rule.store.write(place.key, stored.body, stored.version):
            return stored


def still_needed(session: Session, place: Place, ids: ProcessedIds) -> ProcessedIds:
    """Return the ids whose messages may come again. Drop the lists of the others, which were sent."""
    needed: ProcessedIds = {}
    for entry, (token, flow_id) in ids.items():
        stage, _, message_id = entry.partition(" ")
        # A purge removes the lines of ended flows alone.
        if session.journal.has_committed(stage, message_id) or not session.journal.history(flow_id):
            place.rule.store.drop(place.key, f"{token} {entry}")
        else:
            needed[entry] = (token, flow_id)
    return needed


def drop_sent(kept: KeptList, claim: Claim) -> None:
    try:
        kept.place.rule.store.drop(kept.place.key, kept.name)
    except StoreError as error:
        # The document drops it before it forgets the id.
        logger.warning(
            "%s at %s is settled, but its list cannot be dropped yet: %s",
            claim.message_id,
            claim.stage,
            error,
            extra={"event": "list-not-dropped"},
        )
