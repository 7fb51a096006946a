"""The version of a store's tables, as its ``stagepost_meta`` has it."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.errors import SchemaMismatch


def version_in(row: Sequence[object] | None) -> int:
    """Raises ``SchemaMismatch`` where somebody has changed, or removed, what the migrations write."""
    text = None if row is None else str(row[0])
    if text is None or not text.isdecimal():
        raise SchemaMismatch(
            f"the table stagepost_meta says that its tables are of version {text!r}, which is no number. Restore the "
            "table from a backup."
        )
    return int(text)
