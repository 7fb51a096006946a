"""The archive that a command reads beside the store."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.flow.errors import DeclarationError
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import log_of
from stagepost.transaction.queue_commit import QueueCommit

if TYPE_CHECKING:
    from stagepost.pipeline.archived_lines import WholeHistory
    from stagepost.pipeline.archived_replay import ArchivedReplay

archive_option = click.option(
    "--archive", metavar="FOLDER", help="The store's archive. Default: STAGEPOST_ARCHIVE, stagepost.toml."
)
# A report over the archive reads all of it, so its user asks for it.
archives_option = click.option(
    "--archive", "archive_folders", metavar="FOLDER", multiple=True, help="Read also a store's archive. Repeatable."
)


def check_archive(named: str | None, session: Session) -> None:
    """Raise ``DeclarationError`` if the command names a folder that is no archive of the store.

    A folder of the settings is not checked, because they may name it before the store is archived for the first time.
    """
    if named:
        _load("archive_folder").ArchiveFolder.find(Path(named), session.edge.store())


def whole_history(folder: Path, access: Access) -> WholeHistory:
    """Return the history of a store and its archive. Raises ``DeclarationError`` for the archive of another store."""
    folders, lines = _load("archive_folder"), _load("archived_lines")
    found: WholeHistory = lines.WholeHistory(
        access.session.archives, folders.ArchiveFolder.find(folder, access.session.edge.store())
    )
    return found


def archived_journal(folder: Path, session: Session) -> Any:
    """Return the archived lines of a store's journal. Raises as ``whole_history`` does."""
    return _load("archived_journal").archived_journal(folder, session)


def archives_by_store(folders: Sequence[str]) -> dict[str, Path]:
    """Return the archives by the uuids of their stores.

    Raises ``DeclarationError`` for a folder that is none, and for two of one store.
    """
    found: dict[str, Path] = {}
    for each in map(Path, folders):
        store = _load("archive_folder").store_of(each)
        if store in found:
            raise DeclarationError(
                f"the archives {found[store]} and {each} are both of the store {store}, and a report reads one archive "
                "of a store. Leave one of them out."
            )
        found[store] = each
    return found


def refuse_others(archives: Mapping[str, Path]) -> None:
    """Raise ``DeclarationError`` for archives of stores that the command does not read."""
    for store, folder in archives.items():
        raise DeclarationError(
            f"the archive {folder} is of the store {store}, which is not compared. Leave it out, or name its store."
        )


def archived_replay(folder: Path, store: Store, access: Access, queue_commit: QueueCommit, who: str) -> ArchivedReplay:
    """Return the replay of an archive's letters. Raises as ``whole_history`` does."""
    folders, replays = _load("archive_folder"), _load("archived_replay")
    opened = folders.ArchiveFolder.find(folder, access.session.edge.store())
    log = log_of(store, queue_commit.clock, is_made=True)
    found: ArchivedReplay = replays.ArchivedReplay(queue_commit, access, opened, log, who=who)
    return found


def _load(name: str) -> Any:
    try:
        return importlib.import_module(f"stagepost.pipeline.{name}")
    except ImportError as error:
        raise DeclarationError(
            f"an archive is Parquet, and {error.name} is missing: pip install 'stagepost[spark]'"
        ) from error
