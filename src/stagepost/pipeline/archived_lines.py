"""Look-ups in the archived journal, without Spark: each file has its rows sorted by message id."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stagepost.flow.clock import to_microseconds
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.archive_folder import ArchiveFolder, ArchiveUnusable
from stagepost.ports.archives import Archives, Manifest, NumberedLine
from stagepost.ports.journal import Waypoint

COLUMNS = Waypoint.__struct_fields__


class WholeHistory:
    """The history of a flow from the store and its archive. Implements ``observe.trace.Histories``."""

    def __init__(self, archives: Archives, folder: ArchiveFolder) -> None:
        self._archives = archives
        self._folder = folder

    def history(self, flow_or_message_id: str) -> list[Waypoint]:
        """Return the lines as ``Journal.history`` does, each once. Raises ``ArchiveUnusable``."""
        # The store is read first: a line that leaves it afterwards was read, one that left before has its manifest.
        stored = self._archives.history(flow_or_message_id)
        files = self.files()
        flow = stored[0].waypoint.flow_id if stored else _flow_of(files, flow_or_message_id)
        if flow is None:
            return []
        if not stored:
            stored = self._archives.history(flow)
        lines = {each.line: each.waypoint for each in (*_lines(files, "flow_id", flow), *stored)}
        return [lines[line] for line in sorted(lines)]

    def files(self) -> Sequence[Path]:
        return [file for each in _parts(self._archives, self._folder) for file in self._folder.files(each)]


class KnownParts:
    """The parts of a store's archives. Each manifest is read once.

    ``lines``  the parts of the journal in this archive
    ``last``   the last part of the journal in any archive
    ``gap``    the id of the last part that follows a gap, or is in another archive. Lines behind an earlier part may
               be missing here
    """

    def __init__(self, archives: Archives, archive: str) -> None:
        self._archives = archives
        self._archive = archive
        self._read_until = 0
        self.lines: list[Manifest] = []
        self.last: Manifest | None = None
        self.gap = 0

    def look(self) -> None:
        """Read the manifests that were added since the last look."""
        for each in self._archives.manifests(self._read_until):
            self._read_until = each.id
            is_ours = each.archive == self._archive
            if each.has_gap or not is_ours:
                self.gap = each.id
            if each.kind == "journal":
                self.last = each
                self.lines += [each] if is_ours else []


class ArchivedCommits:
    """The archived commits of some messages, each of them a stage and an id."""

    def __init__(self, parts: KnownParts, folder: ArchiveFolder, messages: Collection[tuple[str, str]]) -> None:
        self._parts = parts
        self._folder = folder
        self._messages = messages
        self._ids = {message_id for _, message_id in messages}
        self._read = 0
        self._found: set[tuple[str, str]] = set()

    def read(self) -> Collection[tuple[str, str]]:
        """Return those of the messages that committed. It reads only new parts, and raises ``ArchiveUnusable``."""
        for part in self._parts.lines[self._read :]:
            lines = (each.waypoint for each in _lines(self._folder.files(part), "message_id", *self._ids))
            self._found |= {(each.stage, each.message_id) for each in lines if each.waypoint == "committed"}
            self._read += 1
        return self._found


def _parts(archives: Archives, folder: ArchiveFolder) -> list[Manifest]:
    archive = folder.identity.archive
    return [each for each in archives.manifests() if (each.kind, each.archive) == ("journal", archive)]


def _flow_of(files: Sequence[Path], flow_or_message_id: str) -> str | None:
    if next(_lines(files, "flow_id", flow_or_message_id), None) is not None:
        return flow_or_message_id
    line = next(_lines(files, "message_id", flow_or_message_id), None)
    return None if line is None else line.waypoint.flow_id


def _lines(files: Sequence[Path], column: str, *values: str) -> Iterator[NumberedLine]:
    """Yield the lines with one of the values. It reads whole only the groups of rows that have one."""
    wanted = pa.array(values, pa.string())
    for path in files:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for group in range(file.num_row_groups):
                    if _may_have(file, group, column, values) and _has(file, group, column, wanted):
                        rows = file.read_row_group(group, ["id", *COLUMNS])
                        yield from map(_line, rows.filter(pc.is_in(rows[column], wanted)).to_pylist())
        except (OSError, pa.ArrowException) as error:
            raise ArchiveUnusable(
                f"the file {path} of the archive cannot be read: {as_sentence(error)} "
                "Restore it from a backup of the archive."
            ) from error


def _may_have(file: pq.ParquetFile, group: int, column: str, values: Sequence[str]) -> bool:
    """Say whether a group may have one of the values, by the least and the greatest one of the group."""
    found = file.metadata.row_group(group).column(file.schema_arrow.get_field_index(column)).statistics
    return found is None or not found.has_min_max or any(found.min <= each <= found.max for each in values)


def _has(file: pq.ParquetFile, group: int, column: str, wanted: pa.Array) -> bool:
    return bool(pc.any(pc.is_in(file.read_row_group(group, [column])[column], wanted)).as_py())


def _line(row: dict[str, Any]) -> NumberedLine:
    row |= {name: to_microseconds(row[name]) for name in ("at", "origin_at")}
    return NumberedLine(row.pop("id"), Waypoint(**row))
