"""The archive that a command reads beside the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.flow.errors import DeclarationError
from stagepost.runtime.access import Access

if TYPE_CHECKING:
    from stagepost.pipeline.archived_lines import WholeHistory

archive_option = click.option(
    "--archive", metavar="FOLDER", help="The store's archive. Default: STAGEPOST_ARCHIVE, stagepost.toml."
)


def whole_history(folder: Path, access: Access) -> WholeHistory:
    """Return the history of a store and its archive. Raises ``DeclarationError`` for the archive of another store."""
    try:
        from stagepost.pipeline.archive_folder import ArchiveFolder  # noqa: PLC0415 - needs an extra
        from stagepost.pipeline.archived_lines import WholeHistory  # noqa: PLC0415
    except ImportError as error:
        raise DeclarationError(
            f"an archive is Parquet, and {error.name} is missing: pip install 'stagepost[spark]'"
        ) from error
    return WholeHistory(access.session.archives, ArchiveFolder.find(folder, access.session.edge.store()))
