"""The manifests of an archive."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stagepost.ports.archives import Manifest, NumberedLine
from stagepost.ports.dead_letters import KeptLetter
from stagepost.ports.journal import Waypoint
from stagepost.store.sql.database import SqlPart, only, text_of
from stagepost.store.sql.letters import kept_letter, note_removed

# The key under which ``stagepost_meta`` has the id of the archive. An empty text is none.
ARCHIVE = "archive"
HELD = "effects_held"


class SqlArchives(SqlPart):
    """Implements ``ports.archives.Archives``."""

    def archive(self) -> str | None:
        row = self._run("find_meta", {"key": ARCHIVE}).fetchone()
        return None if row is None else text_of(row[0]) or None

    def set_archive(self, archive: str | None) -> None:
        self._database.later("put_meta", {"key": ARCHIVE, "value": archive or ""})

    def add(self, manifest: Manifest) -> bool:
        values = manifest._asdict() | {"struck": json.dumps(list(manifest.struck))}
        return self._run("add_manifest", values).rowcount == 1

    def last(self) -> Manifest | None:
        row = self._run("last_manifest").fetchone()
        return None if row is None else _manifest(*row)

    def newest(self) -> Manifest | None:
        row = self._run("newest_manifest").fetchone()
        return None if row is None else _manifest(*row)

    def manifests(self, after: int = 0) -> list[Manifest]:
        return [_manifest(*row) for row in self._run("list_manifests", (after,)).fetchall()]

    def history(self, flow_or_message_id: str) -> list[NumberedLine]:
        rows = self._run("list_numbered_history", (flow_or_message_id,)).fetchall()
        if not rows:
            flow = self._run("find_flow", (flow_or_message_id,)).fetchone()
            rows = [] if flow is None else self._run("list_numbered_history", flow).fetchall()
        return [NumberedLine(line, Waypoint(*columns)) for line, *columns in rows]

    def old_letters(self, last: int, after: int, limit: int) -> list[KeptLetter]:
        wanted = {"last": last, "after": after, "limit": limit}
        return [kept_letter(row) for row in self._run("list_old_letters", wanted).fetchall()]

    def remove_letters(self, letter_ids: Sequence[int]) -> list[int]:
        rows = self._run("remove_archived_letters", (self._database.array(letter_ids),)).fetchall()
        note_removed(self._database, [dead_at for _, dead_at in rows])
        return sorted(letter for letter, _ in rows)

    def is_living(self, message_id: str, flow_id: str, stage: str, origin_at: int) -> bool:
        wanted = {"message_id": message_id, "flow_id": flow_id, "stage": stage, "origin_at": origin_at}
        return bool(only(self._run("is_living", wanted))[0])

    def hold_effects(self) -> None:
        (hours,) = only(self._run("last_hour"))
        self._database.later("put_meta", {"key": HELD, "value": str(hours)})

    def effects_held(self) -> int | None:
        row = self._run("find_meta", {"key": HELD}).fetchone()
        return None if row is None else int(text_of(row[0]))


def _manifest(*columns: object) -> Manifest:
    made = Manifest(*columns)  # type: ignore[arg-type]  # the columns are in the order of the fields
    return made._replace(has_gap=bool(made.has_gap), struck=tuple(json.loads(str(made.struck))))
