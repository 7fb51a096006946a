"""A purge gives free pages of the file back, a few at a time. No process waits for a whole VACUUM."""

from __future__ import annotations

from stagepost.store.sql.database import only
from stagepost.store.sql.retention import SqlRetention

INCREMENTAL = 2
# New rows fill the free pages again, so some may stay: these, or a quarter of the file.
SPARE_PAGES = 4_096
SPARE_PART = 4


class SqliteRetention(SqlRetention):
    """Implements ``ports.retention.Retention``."""

    def has_spare(self) -> bool:
        free, pages, auto_vacuum = only(self._run("look_at_free_pages"))
        return bool(auto_vacuum == INCREMENTAL and free > max(SPARE_PAGES, pages // SPARE_PART))

    def shrink(self) -> None:
        # SQLite frees a page with each row that is read.
        self._run("shrink_file").fetchall()
