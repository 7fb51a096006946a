"""The folder of an archive: its identity, the folders of its parts, and the seal of each part.

A part is written into a new folder that nothing else ever writes. Its seal lists the files with their digests. The seal
comes last, and the manifest in the store has the seal's own digest. So a file that was changed or lost is noticed.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from stagepost.flow.clock import SECOND
from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.flow.texts import as_sentence
from stagepost.ports.archives import ArchiveKind, Manifest

FORMAT = 1
IDENTITY = "archive.json"
SEAL = "manifest.json"
LOCK = "archive.lock"
# A crash leaves a folder without a seal. Younger ones may belong to an archiver that still runs.
LEFT_BEHIND_SECONDS = 7 * 86_400

logger = logging.getLogger(__name__)


class ArchiveUnusable(StagepostError):
    """The archive, or a part of it, is not the one that the store names, or was changed."""

    code = "archive-unusable"


class ArchiveConflict(StagepostError):
    """Another archiver is at work, or has archived the same range meanwhile."""

    code = "archive-conflict"


class Content(NamedTuple):
    """The number of rows of a part, and a digest of them in any order."""

    rows: int
    digest: str


class Identity(msgspec.Struct, frozen=True):
    """``archive`` is the archive's own id, and ``store`` the id of the store whose rows it has."""

    format: int
    archive: str
    store: str


class FileSeal(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Seal(msgspec.Struct, frozen=True):
    """The content of one part. ``digest`` is one of its rows, in any order; ``files`` are its files by their names."""

    format: int
    archive: str
    store: str
    kind: ArchiveKind
    first: int
    next: int
    rows: int
    digest: str
    files: Mapping[str, FileSeal]


@dataclass(frozen=True, slots=True)
class ArchiveFolder:
    """An archive of one store."""

    path: Path
    identity: Identity

    @classmethod
    def make(cls, path: Path, store: str, mint: Callable[[], str]) -> ArchiveFolder:
        """Open the archive of a store, and make it in a new or empty folder. Raises as ``find`` does."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / IDENTITY).exists():
                # Of two that make it at once, the second one finds the id of the first.
                with _locked(path):
                    cls._identify(path, store, mint)
        except OSError as error:
            raise DeclarationError(
                f"the archive {path} cannot be made: {as_sentence(error.strerror)} "
                "Change its permissions, or name another folder."
            ) from error
        return cls.find(path, store)

    @staticmethod
    def _identify(path: Path, store: str, mint: Callable[[], str]) -> None:
        names = {each.name for each in path.iterdir()}
        if IDENTITY in names:
            return
        written = path / f"{IDENTITY}.new"
        if names - {written.name, LOCK}:
            raise DeclarationError(
                f"{path} has files, and is no archive of Stagepost: it has no {IDENTITY}. Name a new folder, or that "
                "of the archive."
            )
        written.write_bytes(msgspec.json.encode(Identity(FORMAT, mint(), store)))
        sync(written)
        written.rename(path / IDENTITY)
        sync(path)
        sync(path.parent)

    @classmethod
    def find(cls, path: Path, store: str) -> ArchiveFolder:
        """Open the archive of a store. Raises ``DeclarationError`` for no archive, and for that of another store."""
        identity = _identity_of(path)
        if identity.store != store:
            raise DeclarationError(
                f"the archive {path} is of another store: of {identity.store}, and not of {store}. Each store has an "
                "archive of its own. Name this store's archive, or the other store with --database."
            )
        return cls(path, identity)

    def check_named(self, archive: str | None) -> None:
        """Raise ``DeclarationError`` if the store names another archive."""
        if archive is not None and archive != self.identity.archive:
            raise DeclarationError(
                f"the store is archived to {archive}, and {self.path} is the archive {self.identity.archive}. Name the "
                "folder of that archive. To begin another archive, end that one with: stagepost archive --end"
            )

    def locked(self) -> AbstractContextManager[None]:
        """Be the one archiver during the block. The lock ends with the process. Raises ``ArchiveConflict``."""
        return _locked(self.path)

    def seal(self, folder: Path, kind: ArchiveKind, first: int, next_: int, rows: int, digest: str) -> str:
        """List the files of a part, and return the seal's digest when all of it is on the disk."""
        files: dict[str, FileSeal] = {}
        for file in _files(folder):
            sync(file)
            files[file.relative_to(folder).as_posix()] = FileSeal(file.stat().st_size, digest_of(file))
        identity = self.identity
        seal = Seal(FORMAT, identity.archive, identity.store, kind, first, next_, rows, digest, files)
        (folder / SEAL).write_bytes(msgspec.json.encode(seal))
        sync(folder / SEAL)
        for name, _, _ in os.walk(folder):
            sync(Path(name))
        sync(self.path)
        return digest_of(folder / SEAL)

    def files(self, manifest: Manifest, *, is_thorough: bool = False) -> list[Path]:
        """Return the files of a part, after a check that they are those of the manifest.

        ``is_thorough`` reads them whole. Otherwise only their sizes are checked. Raises ``ArchiveUnusable``.
        """
        folder = self.path / manifest.folder
        remedy = "Restore the folder from a backup of the archive."
        try:
            if digest_of(folder / SEAL) != manifest.seal:
                raise ArchiveUnusable(
                    f"{folder / SEAL} is not the one that was written with the store's manifest {manifest.id}. {remedy}"
                )
            seal = msgspec.json.decode((folder / SEAL).read_bytes(), type=Seal)
            expected = (manifest.archive, manifest.kind, manifest.first, manifest.next, manifest.rows)
            if (seal.archive, seal.kind, seal.first, seal.next, seal.rows) != expected:
                raise ArchiveUnusable(
                    f"{folder / SEAL} does not fit the store's manifest {manifest.id}: it has {seal.rows} rows of "
                    f"{seal.kind} from {seal.first} to {seal.next}. {remedy}"
                )
            for name, sealed in seal.files.items():
                file = folder / name
                if file.stat().st_size != sealed.size or (is_thorough and digest_of(file) != sealed.sha256):
                    raise ArchiveUnusable(f"the file {file} was changed after it was archived. {remedy}")
        except (OSError, msgspec.DecodeError) as error:
            raise ArchiveUnusable(
                f"the part {folder} of the archive cannot be read: {as_sentence(error)} {remedy}"
            ) from error
        return [folder / name for name in sorted(seal.files) if name.endswith(".parquet")]

    def discard(self, folder: Path) -> None:
        """Remove a part that no manifest names."""
        shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, now: int) -> None:
        """Remove old folders without a seal, which crashed archivers left. A sealed one may be another copy's part."""
        for each in self.path.iterdir():
            is_part = each.is_dir() and each.name.startswith(("journal-", "dead_letters-"))
            if is_part and not (each / SEAL).exists() and now / SECOND - each.stat().st_mtime > LEFT_BEHIND_SECONDS:
                self.discard(each)


def store_of(path: Path) -> str:
    """Return the uuid of an archive's store. Raises ``DeclarationError`` for a folder that is no archive."""
    return _identity_of(path).store


def _identity_of(path: Path) -> Identity:
    try:
        identity = msgspec.json.decode((path / IDENTITY).read_bytes(), type=Identity)
    except (OSError, msgspec.DecodeError) as error:
        raise DeclarationError(
            f"{path} is no archive of Stagepost: {IDENTITY} cannot be read: {as_sentence(error)} "
            "Name the archive's folder with "
            "--archive, STAGEPOST_ARCHIVE, or archive in stagepost.toml."
        ) from error
    if identity.format != FORMAT:
        raise DeclarationError(f"the archive {path} was written by another version of Stagepost. Use that version.")
    return identity


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with (path / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArchiveConflict(
                f"another archiver is at work in {path}. Nothing was archived here. Wait until it has ended."
            ) from error
        except OSError:
            # Some disks of a network have no locks. The store then elects the archiver of a range.
            logger.warning("the archive %s is on a disk without locks", path, extra={"event": "no-lock"})
        yield


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Return when a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a part. Spark's checksums and its mark of success are no part of it."""
    for name, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(name, each) for each in sorted(files) if each.endswith(".parquet"))
