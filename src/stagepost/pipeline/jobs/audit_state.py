"""The state of an audit: a folder that carries its position, and from which the next audit continues.

It is written once, into a new folder, and never changed. It counts only when the store names it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from stagepost.flow.errors import StagepostError
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.transforms.state import FACT_COUNTS, FACTS, FLOWS, MESSAGE_COUNTS, MESSAGES
from stagepost.ports.findings import counted
from stagepost.ports.journal import Position

FORMAT = 1
FILE = "state.json"
FINAL_COUNTS = ("flows", "sent", "committed", "expired", "dead", "edited", "open", "lost", "doubled")


# A stage, the begin of an hour of origin, and its minutes: how many messages ended well, and how many died.
SettledHour = tuple[str, int, list[tuple[int, int, int]]]


class AuditStateUnusable(StagepostError):
    """The state that the store names cannot be used."""

    code = "audit-state-unusable"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The small part of a state.

    ``until``     the journal's position at which the state ends
    ``messages``  the number of rows of messages that it holds
    ``nodes``     the names of nodes, by their digests
    ``work``      the committed messages of settled flows, by node
    ``final``     the counts of each final window, by its begin and end
    ``provisional``  the begins and ends of the other windows; None in a state of an earlier version
    ``sizes``     the sizes of the store: see ``report.growth``
    ``settled_before``  each settled flow was quiet since this moment; None in a state of an earlier version
    ``settled_hours``   how messages of settled flows ended in the hours that have messages which are still dead
    """

    format: int
    until: str
    window_seconds: int
    messages: int
    nodes: dict[int, str]
    work: dict[str, int]
    final: dict[str, list[int]]
    sizes: list[tuple[int, int]] = []
    provisional: list[str] | None = None
    settled_before: int | None = None
    settled_hours: list[SettledHour] = []


@dataclass(frozen=True, slots=True)
class AuditState:
    """A state on the disk."""

    folder: Path
    summary: Summary
    position: Position = field(repr=False)

    @classmethod
    def read(cls, folder: Path, window_seconds: int) -> AuditState:
        """Raises ``AuditStateUnusable``."""
        try:
            summary = msgspec.json.decode((folder / FILE).read_bytes(), type=Summary)
        except (OSError, msgspec.DecodeError) as error:
            raise AuditStateUnusable(
                f"the state {folder}, from which this audit would continue, cannot be read: {as_sentence(error)} "
                "Restore the "
                "folder, or name another one with --state, which begins with a full audit."
            ) from error
        position = Position.read(summary.until)
        if summary.format != FORMAT or position is None:
            raise AuditStateUnusable(
                f"the state {folder} was written by another version of Stagepost. Name another folder with --state, "
                "which begins with a full audit."
            )
        if summary.window_seconds != window_seconds:
            raise AuditStateUnusable(
                f"the state {folder} has windows of {summary.window_seconds} seconds, and not of {window_seconds}. "
                f"Use --window {summary.window_seconds}, or name another folder with --state."
            )
        if _rows_of_parts(folder) != summary.messages:
            raise AuditStateUnusable(
                f"the state {folder}, from which this audit would continue, lacks files, or has others. It held "
                f"{counted(summary.messages, 'message')}. Restore the folder, or name another one with --state, which "
                "begins with a full audit."
            )
        return cls(folder, summary, position)

    def check_end(self, until: Position) -> None:
        """Check that the journal, which ends at ``until``, goes on from this state. Raises ``AuditStateUnusable``."""
        if self.position.epoch not in ("", until.epoch):
            raise AuditStateUnusable(
                f"the state {self.folder} ends at {self.position}, and the journal at {until}, in another epoch: the "
                "database was restored, or its server was promoted. Name another folder with --state, which begins "
                "with a full audit."
            )
        # An empty journal ends at 1. Its lines were purged.
        if 1 < until < self.position:
            raise AuditStateUnusable(
                f"the state {self.folder} ends at {self.position}, and the journal at {until}: the store was restored "
                "from a backup. Name another folder with --state, which begins with a full audit."
            )

    def messages(self, spark: SparkSession) -> DataFrame:
        return self._part(spark, "messages", MESSAGES).fillna(0, MESSAGE_COUNTS)

    def facts(self, spark: SparkSession) -> DataFrame:
        return self._part(spark, "facts", FACTS).fillna(0, FACT_COUNTS)

    def flows(self, spark: SparkSession) -> DataFrame:
        return self._part(spark, "flows", FLOWS)

    def _part(self, spark: SparkSession, name: str, schema: str) -> DataFrame:
        return spark.read.schema(schema).parquet(_address(self.folder / name))


def write_state(folder: Path, *, messages: DataFrame, facts: DataFrame, flows: DataFrame, summary: Summary) -> None:
    """Write a state into a new folder, and return when it is on the disk. The summary comes last.

    Raises ``AuditStateUnusable`` if executors wrote parts of it elsewhere.
    """
    messages.write.parquet(_address(folder / "messages"))
    facts.coalesce(1).write.parquet(_address(folder / "facts"))
    flows.coalesce(1).write.parquet(_address(folder / "flows"))
    check_written(folder, summary.messages)
    (folder / FILE).write_bytes(msgspec.json.encode(summary))
    for name, _, files in os.walk(folder):
        for file in files:
            _sync(Path(name, file))
        _sync(Path(name))
    _sync(folder.parent)


def check_written(folder: Path, messages: int) -> None:
    """Check that all parts of a state are where this process reads them. Raises ``AuditStateUnusable``.

    An executor writes to the disk of its own machine. Spark does not notice that the folder is another one there, and
    the next audit would miss the open messages of the lost parts.
    """
    rows = _rows_of_parts(folder)
    if rows != messages:
        raise AuditStateUnusable(
            f"the state {folder} is not whole: of {messages} messages this machine sees {rows or 0}. "
            "Executors on other machines have another folder of that name, or one of them was lost. Name a folder "
            "with --state that the driver and all executors share."
        )


def _rows_of_parts(folder: Path) -> int | None:
    """Return the number of messages in the files of a state; None if one of its parts has no readable file."""
    rows = [_rows_of(folder / name) for name in ("messages", "facts", "flows")]
    return None if None in rows else rows[0]


def _rows_of(folder: Path) -> int | None:
    """Return the number of rows in the Parquet files of a folder; None without a readable file."""
    try:
        counts = [pq.ParquetFile(each).metadata.num_rows for each in folder.glob("*.parquet")]
    except (OSError, pa.ArrowException):
        return None
    return sum(counts) if counts else None


def final_windows(windows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the counts of the final windows of a balance."""
    return {_name(row): _counts(row) for row in windows if row["state"] == "final"}


def provisional_windows(windows: list[dict[str, Any]]) -> list[str]:
    """Return the names of the other windows."""
    return [_name(row) for row in windows if row["state"] != "final"]


def reopened(windows: list[dict[str, Any]], before: Summary) -> list[dict[str, Any]]:
    """Return the windows that were final in the audit of ``before``, and have other counts now.

    A window that was merged meanwhile is compared with the sum of its parts, if all of them were final.
    """
    found = []
    last = max((name.partition("/")[2] for name in before.final), default="")
    for row in windows:
        counts = before.final.get(_name(row))
        if counts is None and row["until"] <= last:
            counts = _sum_of_parts(row, before)
        if counts is not None and counts != _counts(row):
            found.append({"window": row["window"], "until": row["until"], "state": row["state"]})
    return found


def _sum_of_parts(row: dict[str, Any], before: Summary) -> list[int] | None:
    """Return the counts of the windows within this one, or None if there were none, or if one was not final."""
    first, last = str(row["window"]), str(row["until"])

    def is_part(name: str) -> bool:
        begin, _, until = name.partition("/")
        return first <= begin and until <= last

    parts = [counts for name, counts in before.final.items() if is_part(name)]
    if before.provisional is None or not parts or any(is_part(name) for name in before.provisional):
        return None
    return [sum(numbers) for numbers in zip(*parts, strict=True)]


def _name(row: dict[str, Any]) -> str:
    return f"{row['window']}/{row['until']}"


def _counts(row: dict[str, Any]) -> list[int]:
    return [row[name] for name in FINAL_COUNTS]


def _address(path: Path) -> str:
    return path.absolute().as_uri()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
