"""Archive closed ranges of the journal and old dead letters: write, read back, seal, take over, delete.

One commit takes over: it writes the manifest. Before it, the files count for nothing. After it, the rows may be
deleted, by this archiver, by the next one or by the purge. So a crash anywhere leaves nothing that is lost or counted
twice. Two archivers of one range read the same lines, and the store accepts the manifest of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from stagepost.flow.clock import Clock
from stagepost.flow.errors import StagepostError
from stagepost.flow.ids import IdSource
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.archive_folder import ArchiveConflict, ArchiveFolder, Content
from stagepost.pipeline.archived_letters import read_content, write_letters
from stagepost.ports.archives import ArchiveKind, Manifest
from stagepost.ports.dead_letters import KeptLetter
from stagepost.ports.journal import Position
from stagepost.ports.retention import Mark
from stagepost.runtime.access import Access
from stagepost.transaction.effects import EffectLog
from stagepost.transaction.journal_purge import JournalPurge
from stagepost.transaction.purge_batches import Batches, unobserved_purge
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.retention import Rules, read_rules
from stagepost.transaction.undoing import open_effects

# A part has at most so many letters, because one commit deletes them, and about so many bytes, which are in memory.
LETTERS = 5_000
LETTER_BYTES = 64 << 20
# A page is read as a whole, and its letters may be large.
PAGE = 50


class ArchiveStep(StrEnum):
    """The steps of one part: its files are written, verified and sealed. Its manifest is written and committed.

    Then the rows in the store are deleted.
    """

    WRITTEN = "written"
    VERIFIED = "verified"
    SEALED = "sealed"
    TAKING = "taking"
    TAKEN = "taken"
    DELETED = "deleted"


ArchiveListener = Callable[[ArchiveStep], None]


def unobserved_archive(step: ArchiveStep) -> None:
    """Ignore a step: the default listener."""


class ArchiveFailed(StagepostError):
    """The files of a part do not have the rows that were read. Nothing was deleted."""

    code = "archive-failed"


class RangeWriter(Protocol):
    """Copies a range of the journal to Parquet files, and reads them."""

    def write(self, first: int, next_: int, folder: Path) -> Content:
        """Write the lines with ids from ``first`` up to, but without, ``next_`` into a new folder."""

    def read_back(self, folder: Path) -> Content:
        """Read the files of a folder."""


class Archiver:
    """Archives what is old in one store.

    ``access``  the sessions to the queue's database, and to that of the stages' data
    ``log``     the log of effects, if the store has one
    ``rules``   None for those of the store
    """

    def __init__(
        self,
        access: Access,
        folder: ArchiveFolder,
        writer: RangeWriter,
        *,
        clock: Clock,
        ids: IdSource,
        log: EffectLog | None = None,
        rules: Rules | None = None,
        listener: ArchiveListener = unobserved_archive,
    ) -> None:
        self._session = access.session
        self._archives = access.session.archives
        self._retention = access.session.retention
        self._folder = folder
        self._writer = writer
        self._clock = clock
        self._ids = ids
        self._log = log
        self._rules = rules or read_rules(access.session)
        self._listener = listener
        batches = Batches(access.session, is_dry=False, listener=unobserved_purge)
        self._journal = JournalPurge(access.session, access.work, batches)

    def run(self) -> Iterator[Manifest]:
        """Yield each manifest after its commit. Raises ``StoreError``, and the errors of this module and its folder.

        It ends when the store has deleted what is archived and ended.
        """
        with self._folder.locked():
            self._adopt()
            self._folder.sweep(self._clock.now())
            yield from self._archive_lines()
            self._delete_lines()
            yield from self._archive_letters()

    def _adopt(self) -> None:
        """Name this archive in the store, so that the purge leaves lines and letters to it."""
        known = self._archives.archive()
        self._folder.check_named(known)
        if known is None:
            with committing(self._session):
                self._archives.set_archive(self._folder.identity.archive)

    def _archive_lines(self) -> Iterator[Manifest]:
        keep = self._rules.of_kind("journal")
        mark = None if keep is None else self._journal.reach(self._retention.hours(), keep)
        if mark is None:
            return
        last = self._archives.last()
        first = 0 if last is None else last.next
        for end in self._ends(first, mark):
            yield self._archive_range(first, end, mark)
            first = end

    def _ends(self, first: int, mark: Mark) -> list[int]:
        """Return where the ranges end that begin at ``first``: each behind a closed range, or behind the mark."""
        if self._retention.ends_at() is None:
            return [mark.line + 1] if mark.line >= max(first, 1) else []
        return [each.next for each in self._retention.closed_ranges() if first < each.next <= mark.line + 1]

    def _archive_range(self, first: int, next_: int, mark: Mark) -> Manifest:
        with self._new_part("journal") as folder:
            written = self._writer.write(first, next_, folder)
            self._listener(ArchiveStep.WRITTEN)
            self._check(folder, written, self._writer.read_back(folder))
            seal = self._folder.seal(folder, "journal", first, next_, *written)
            self._listener(ArchiveStep.SEALED)
            manifest = self._manifest("journal", folder, first, next_, written.rows, seal)
            # A mark of another epoch than the store's is 0.
            return self._take_lines(manifest, mark.position)

    def _take_lines(self, manifest: Manifest, position: Position) -> Manifest:
        with committing(self._session):
            self._check_not_ended()
            last, before = self._archives.last(), self._retention.purged_until()
            taken = manifest._replace(
                end=str(position if position > (before or 0) else before or ""),
                has_gap=self._has_gap(before),
            )
            if (0 if last is None else last.next) != manifest.first or not self._archives.add(taken):
                raise ArchiveConflict(
                    f"another archiver has archived the lines from {manifest.first} on meanwhile. Nothing of this try "
                    "was kept. Run the command again."
                )
            if position > (before or 0):
                self._retention.set_purged(position)
            self._listener(ArchiveStep.TAKING)
        self._listener(ArchiveStep.TAKEN)
        return taken

    def _delete_lines(self) -> None:
        """Delete the lines of ended flows up to the last manifest's end. The purge does the same, once an hour."""
        last = self._archives.last()
        if last is None:
            return
        end = Position.read(last.end) or Position(0)
        for _ in self._journal.remove(Mark(last.next - 1, end)):
            pass
        self._listener(ArchiveStep.DELETED)

    def _archive_letters(self) -> Iterator[Manifest]:
        keep = self._rules.of_kind("dead_letters")
        mark = None if keep is None else self._retention.mark(self._retention.hours() - keep - 1)
        if mark is None:
            return
        after = 0
        while letters := self._next_letters(mark.letter, after):
            after = letters[-1].id
            # The effects of such a message are being undone.
            settled = [each for each in letters if not open_effects(self._log, each.letter)]
            if settled and (manifest := self._archive_some(settled)) is not None:
                yield manifest

    def _next_letters(self, last: int, after: int) -> list[KeptLetter]:
        letters: list[KeptLetter] = []
        size = 0
        while len(letters) < LETTERS and size < LETTER_BYTES:
            page = self._archives.old_letters(last, letters[-1].id if letters else after, PAGE)
            letters += page
            size += sum(len(each.letter.envelope) + len(each.letter.stack) for each in page)
            if len(page) < PAGE:
                break
        return letters

    def _archive_some(self, letters: list[KeptLetter]) -> Manifest | None:
        """Archive letters. Returns None if none of them was there any longer."""
        with self._new_part("dead_letters") as folder:
            written = write_letters(folder, letters, self._log)
            self._listener(ArchiveStep.WRITTEN)
            self._check(folder, written, read_content(folder))
            first, next_ = letters[0].id, letters[-1].id + 1
            seal = self._folder.seal(folder, "dead_letters", first, next_, *written)
            self._listener(ArchiveStep.SEALED)
            manifest = self._manifest("dead_letters", folder, first, next_, written.rows, seal)
            taken = self._take_letters(manifest, [each.id for each in letters])
            if taken is None:
                self._folder.discard(folder)
            return taken

    def _take_letters(self, manifest: Manifest, ids: list[int]) -> Manifest | None:
        with committing(self._session):
            self._check_not_ended()
            # A letter never changes, and its id is never given out again.
            removed = set(self._archives.remove_letters(ids))
            mark = self._retention.purged_until()
            struck = tuple(each for each in ids if each not in removed)
            taken = manifest._replace(end=str(mark or ""), has_gap=self._has_gap(mark), struck=struck)
            if removed:
                self._archives.add(taken)
            self._listener(ArchiveStep.TAKING)
        if not removed:
            return None
        self._listener(ArchiveStep.TAKEN)
        return taken

    def _check_not_ended(self) -> None:
        if self._archives.archive() != self._folder.identity.archive:
            raise ArchiveConflict(
                f"the archive {self._folder.path} was ended meanwhile. Nothing of this try was kept. To begin it "
                "again, run the command again."
            )

    def _has_gap(self, mark: Position | None) -> bool:
        """Say whether lines were purged, and not archived, since the last manifest."""
        newest = self._archives.newest()
        return mark is not None and (newest is None or not newest.covers(mark))

    @contextmanager
    def _new_part(self, kind: ArchiveKind) -> Iterator[Path]:
        """Name a new folder. If the block fails, the folder is removed, unless a manifest names it."""
        folder = self._folder.path / f"{kind}-{self._ids.mint()}"
        try:
            yield folder
        except (StagepostError, OSError) as error:
            # A commit without an answer may have stood.
            if not any(each.folder == folder.name for each in self._archives.manifests()):
                self._folder.discard(folder)
            if isinstance(error, OSError):
                raise ArchiveFailed(
                    f"{folder} could not be written: {as_sentence(error)} Nothing was deleted."
                ) from error
            raise

    def _check(self, folder: Path, written: Content, found: Content) -> None:
        if found != written:
            raise ArchiveFailed(
                f"{folder} does not have the rows that were written: {found.rows} of {written.rows} rows, as this "
                "machine reads them. Nothing was deleted. Executors on other machines may have another folder of that "
                "name: name one that the driver and all executors share."
            )
        self._listener(ArchiveStep.VERIFIED)

    def _manifest(self, kind: ArchiveKind, folder: Path, first: int, next_: int, rows: int, seal: str) -> Manifest:
        archive = self._folder.identity.archive
        return Manifest(archive, kind, folder.name, first, next_, rows, seal, "", self._clock.now())
