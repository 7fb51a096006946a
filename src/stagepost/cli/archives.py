"""The archive that a command reads beside the store."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.flow.errors import DeclarationError
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


def whole_history(folder: Path, access: Access) -> WholeHistory:
    """Return the history of a store and its archive. Raises ``DeclarationError`` for the archive of another store."""
    folders, lines = _load("archive_folder"), _load("archived_lines")
    found: WholeHistory = lines.WholeHistory(
        access.session.archives, folders.ArchiveFolder.find(folder, access.session.edge.store())
    )
    return found


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
