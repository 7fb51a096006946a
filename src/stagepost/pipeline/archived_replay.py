"""Replay dead letters from an archive.

A letter comes back once: the commit that puts its message into the queue accepts a key of its manifest and its id. Of
two replays at once one has the key. A message that committed is left alone, or gets a new id. Its effects come back
first, so the next attempt is given the results of calls that were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from stagepost.flow import ids
from stagepost.flow.codec import decode_envelope, encode_envelope
from stagepost.flow.envelope import Envelope
from stagepost.flow.errors import ReplayRefused, StoreContention, Undecodable
from stagepost.flow.initiation import Acceptance, Outgoing
from stagepost.pipeline.archive_folder import ArchiveFolder
from stagepost.pipeline.archived_letters import ArchivedLetter, letters_of
from stagepost.pipeline.archived_lines import ArchivedCommits, KnownParts
from stagepost.pipeline.archiver import LETTER_BYTES, LETTERS
from stagepost.ports.archives import Manifest
from stagepost.ports.dead_letters import DeadLetter, KeptLetter
from stagepost.ports.effects import LoggedEffect
from stagepost.recovery.letter_filter import LetterFilter
from stagepost.recovery.rate_limiter import RateLimiter
from stagepost.runtime.access import Access
from stagepost.transaction.database_wait import StopSignal
from stagepost.transaction.departures import restamp
from stagepost.transaction.effects import EffectLog
from stagepost.transaction.effects_purge import HOLD_HOURS
from stagepost.transaction.enqueueing import line_of_letter, sent_line
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.replaying import MAYBE_GONE, wait_for
from stagepost.transaction.retention import REPLAY_PREFIX

# ``replayed``   the message is in the queue again
# ``again``      it had committed, and another message with a new id is in the queue
# ``committed``  it had committed, and was left alone. So was a message that may have reached its receiver
# ``living``     the queue or the dead letters have it
# ``before``     it was replayed from this archive before
ReplayOutcome = Literal["replayed", "again", "committed", "living", "before"]
Batch = Sequence[tuple[Manifest, ArchivedLetter]]


class ArchivedReplay:
    """A replay of letters of an archive.

    ``access``  the sessions to the databases, whose outboxes may have a message
    ``log``     the log of effects; None for a store that cannot have one
    """

    def __init__(
        self, queue_commit: QueueCommit, access: Access, folder: ArchiveFolder, log: EffectLog | None, *, who: str
    ) -> None:
        self._queue_commit = queue_commit
        self._session = queue_commit.session
        self._archives = queue_commit.session.archives
        self._access = access
        self._folder = folder
        self._log = log
        self._who = who

    def found(self, wanted: LetterFilter) -> Iterator[tuple[Manifest, ArchivedLetter]]:
        """Yield the letters of the archive that the filter takes. Raises ``ArchiveUnusable``."""
        archive = self._folder.identity.archive
        for manifest in self._archives.manifests():
            if (manifest.kind, manifest.archive) == ("dead_letters", archive):
                struck = set(manifest.struck)
                for each in letters_of(self._folder.files(manifest, is_thorough=True)):
                    if each.kept.id not in struck and wanted.takes(each.kept.letter, each.types):
                        yield manifest, each

    def run(
        self, wanted: LetterFilter, *, stop: StopSignal, again: bool = False, rate: float | None = None
    ) -> Iterator[Counter[ReplayOutcome]]:
        """Replay ``rate`` letters a second, and yield the outcomes of each chunk after its commit.

        A replay that was broken off continues when it is run again. ``again`` gives a message that committed a new,
        linked id. Raises ``ReplayRefused`` if lines of the journal are missing that would show a commit.
        """
        limiter = RateLimiter(rate, self._queue_commit.clock)
        parts = KnownParts(self._archives, self._folder.identity.archive)
        for batch in _batches(self.found(wanted)):
            commits = ArchivedCommits(parts, self._folder, {_key(each.kept.letter) for _, each in batch})
            for begin in range(0, len(batch), limiter.chunk):
                if not wait_for(limiter, stop):
                    return
                outcomes = self._replay(batch[begin : begin + limiter.chunk], parts, commits, again=again)
                limiter.did(outcomes["replayed"] + outcomes["again"])
                yield outcomes

    def _replay(
        self, chunk: Batch, parts: KnownParts, commits: ArchivedCommits, *, again: bool
    ) -> Counter[ReplayOutcome]:
        origins = dict.fromkeys(manifest for manifest, _ in chunk)
        self._check_provable(origins, parts)
        # This may take long. In the transaction only those parts are read that are added meanwhile.
        commits.read()
        held = self._restore(chunk)
        outcomes: Counter[ReplayOutcome] = Counter()
        with committing(self._session):
            if held is not None and self._session.retention.hours() - held >= HOLD_HOURS:
                raise StoreContention("the replay stood still for a day, and its effects may be gone: run it again")
            stored = [self._session.journal.has_committed(*_key(each.kept.letter)) for _, each in chunk]
            # A line that left the store before this look is in the archive by now, or was purged.
            self._check_provable(origins, parts)
            archived = commits.read()
            for (manifest, each), is_stored in zip(chunk, stored, strict=True):
                letter = each.kept.letter
                has_committed = is_stored or _key(letter) in archived
                outcomes[self._replay_one(manifest, letter, each.kept.id, has_committed, again=again)] += 1
        return outcomes

    def _replay_one(
        self, manifest: Manifest, letter: DeadLetter, letter_id: int, has_committed: bool, *, again: bool
    ) -> ReplayOutcome:
        session = self._session
        if not again and (has_committed or letter.reason in MAYBE_GONE):
            return "committed"
        if self._is_living(letter):
            return "living"
        successor = self._successor(letter, letter_id) if has_committed else None
        if has_committed and successor is None:
            return "committed"
        now = self._queue_commit.clock.now()
        (verdict,) = session.accepted.accept([_acceptance(manifest, letter, letter_id, now)])
        if verdict.outcome != "started":
            return "before"
        node, detail = self._queue_commit.node, f"by {self._who}, from {manifest.folder}"
        if successor is None:
            self._queue_commit.revive(letter)
            restamp(self._queue_commit, [letter])
            session.journal.record([line_of_letter("replayed", letter, now, node, detail)])
            return "replayed"
        envelope, data = successor
        new = replace(letter, message_id=envelope.message_id, envelope=data, deliveries=0)
        self._queue_commit.revive(new)
        session.journal.record([sent_line(envelope, letter.stage, len(data), now, node, letter.stage)])
        return "again"

    def _successor(self, letter: DeadLetter, letter_id: int) -> tuple[Envelope, bytes] | None:
        """Return the message with a new id, which names the old one as its cause; None for one that cannot be read."""
        try:
            envelope = decode_envelope(letter.envelope)
        except Undecodable:
            return None
        new_id = ids.derived(letter.message_id, letter.stage, 0, "replay", self._folder.identity.archive, letter_id)
        changed = msgspec.structs.replace(
            envelope, message_id=new_id, cause_id=letter.message_id, sent_at=self._queue_commit.clock.now()
        )
        return changed, encode_envelope(changed)

    def _check_provable(self, origins: Iterable[Manifest], parts: KnownParts) -> None:
        """Look at the parts. Raises ``ReplayRefused`` if lines behind letters are neither here nor in the archive."""
        mark = self._session.retention.purged_until()
        # A part that was added after the mark was read covers it, too.
        parts.look()
        for origin in origins:
            is_whole = origin.covers(mark) or (parts.last is not None and parts.last.covers(mark))
            if not is_whole or origin.id < parts.gap:
                raise ReplayRefused(
                    f"the letters of {origin.folder} cannot be replayed: since they were archived, lines of the "
                    "journal were removed that are not in this archive. So it cannot be proved that their messages "
                    "have not committed meanwhile. None of them was replayed. Look for their work, and start flows "
                    "for those without it."
                )

    def _restore(self, chunk: Batch) -> int | None:
        """Put the effects of the letters back into the log. Returns the hour from which on the purge leaves them."""
        # The effects of a letter that was replayed before may be newer than these.
        with_effects = [each for manifest, each in chunk if each.effects and self._is_new(manifest, each.kept)]
        if not with_effects or self._log is None:
            return None
        with committing(self._session):
            self._archives.hold_effects()
        held = self._archives.effects_held()
        for each in with_effects:
            letter = each.kept.letter
            if not self._is_living(letter):
                restore_effects(self._log, letter, each.effects)
        return held

    def _is_new(self, manifest: Manifest, kept: KeptLetter) -> bool:
        """Say whether the letter was not replayed yet. It accepts its key, and rolls back."""
        self._session.begin()
        try:
            accepted = self._session.accepted.accept([_acceptance(manifest, kept.letter, kept.id, 0)])
            return accepted[0].outcome == "started"
        finally:
            self._session.rollback()

    def _is_living(self, letter: DeadLetter) -> bool:
        # A flow leaves an outbox after the queue has it, so the outboxes are looked at first.
        return self._access.is_held(letter.stage, letter.message_id) or self._archives.is_living(
            letter.message_id, letter.flow_id, letter.stage, letter.origin_at
        )


def restore_effects(log: EffectLog, letter: DeadLetter, archived: Sequence[LoggedEffect]) -> None:
    """Write the effects of a message into new rows of the log, so that a purge that saw older rows removes none."""
    with log.committing() as effects:
        present = effects.of_message(letter.message_id, letter.stage)
        effects.remove_message(letter.message_id, letter.stage)
        for each in present or archived:
            row = effects.add(each.id, each.flow_id, each.generation, each.digest, each.request)
            for call in each.intents:
                intent = effects.intend(row, call.token, call.owner, call.node, call.at, is_repeat=call.is_repeat)
                if call.is_withdrawn:
                    effects.withdraw_one(intent)
            if each.result is not None:
                effects.keep(row, each.result)
            if each.ending is not None:
                effects.end(row, each.ending)
        effects.end_intents(letter.message_id, letter.stage, letter.deliveries)
        # A late owner of the dead message may call no more.
        effects.raise_token(letter.message_id, letter.stage, letter.deliveries + 1)


def _batches(found: Iterable[tuple[Manifest, ArchivedLetter]]) -> Iterator[Batch]:
    """Yield letters together for one look into the archive: at most as many as a part has, or about as many bytes."""
    batch: list[tuple[Manifest, ArchivedLetter]] = []
    size = 0
    for each in found:
        letter = each[1].kept.letter
        batch.append(each)
        size += len(letter.envelope) + len(letter.stack)
        if len(batch) == LETTERS or size >= LETTER_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _key(letter: DeadLetter) -> tuple[str, str]:
    return letter.stage, letter.message_id


def _acceptance(manifest: Manifest, letter: DeadLetter, letter_id: int, now: int) -> Acceptance:
    """Build the acceptance of a letter of a manifest. The envelope is of no account: the stored bytes are used."""
    envelope = Envelope(
        message_id=letter.message_id,
        flow_id=letter.flow_id,
        kind="send",
        to=letter.stage,
        sender=letter.stage,
        messages=(),
        origin_at=letter.origin_at,
        sent_at=now,
    )
    key = f"{manifest.folder}:{letter_id}"
    return Acceptance(f"{REPLAY_PREFIX}{manifest.archive}", key, "", Outgoing(envelope, None))
