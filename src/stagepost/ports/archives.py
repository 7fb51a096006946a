"""Capability: the manifests of an archive. The archive is what these name, and not what its folder holds.

From the first manifest on, the journal and the dead letters leave the store only for the archive. The purge removes
lines that a manifest names, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from stagepost.ports.dead_letters import KeptLetter
from stagepost.ports.journal import Position, Waypoint

ArchiveKind = Literal["journal", "dead_letters"]


class Manifest(NamedTuple):
    """One part of an archive.

    ``archive``  the id of the archive
    ``folder``   the name of the part's folder in the archive
    ``first``, ``next``  the part has all rows with ids from ``first`` up to, but without, ``next``
    ``end``      the purge mark of the commit that wrote this manifest; empty if there was none
    ``has_gap``  lines were purged, and not archived, since the manifest before
    ``seal``     a digest of the list of files in the folder
    ``struck``   ids of letters in the files that were replayed or edited meanwhile, and do not count
    """

    archive: str
    kind: ArchiveKind
    folder: str
    first: int
    next: int
    rows: int
    seal: str
    end: str
    written_at: int
    has_gap: bool = False
    struck: tuple[int, ...] = ()
    id: int = 0

    def covers(self, purged: Position | None) -> bool:
        """Say whether a purge mark is not beyond that of this manifest, so no line was purged since."""
        end = Position.read(self.end)
        return purged is None or (end is not None and end.epoch == purged.epoch and purged <= end)


class NumberedLine(NamedTuple):
    """A line of the journal with its id."""

    line: int
    waypoint: Waypoint


class Archives(Protocol):
    """The archives' part of a session. Writes happen in its open transaction; reads need none."""

    def archive(self) -> str | None:
        """Return the id of the archive that gets the journal; None for a store without an archive."""

    def set_archive(self, archive: str | None) -> None:
        """Name the archive that gets the journal. None: the purge removes lines and letters by age again."""

    def add(self, manifest: Manifest) -> bool:
        """Add a manifest. Returns False, and adds none, if another one of the journal begins at the same line."""

    def last(self) -> Manifest | None:
        """Return the journal's last manifest."""

    def newest(self) -> Manifest | None:
        """Return the manifest of either kind that was written last."""

    def manifests(self, after: int = 0) -> list[Manifest]:
        """Return the manifests with ids beyond ``after``, in order: that of their ids, and of their commits."""

    def history(self, flow_or_message_id: str) -> list[NumberedLine]:
        """Return the lines of ``Journal.history``, each with its id."""

    def old_letters(self, last: int, after: int, limit: int) -> list[KeptLetter]:
        """Return dead letters with ids beyond ``after``, up to ``last``, in order.

        The letters that an unfinished replay names are left out.
        """

    def remove_letters(self, letter_ids: Sequence[int]) -> list[int]:
        """Remove those of the dead letters that no unfinished replay names. Returns the ids of the removed ones."""

    def is_living(self, message_id: str, flow_id: str, stage: str, origin_at: int) -> bool:
        """Say whether the queue or the dead letters have the message."""

    def hold_effects(self) -> None:
        """Note that a replay restores effects, in the present hour of housekeeping. The purge leaves them alone."""

    def effects_held(self) -> int | None:
        """Return the hours of housekeeping that were counted when effects were last held; None if they never were."""
