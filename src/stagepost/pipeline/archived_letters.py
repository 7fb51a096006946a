"""Dead letters in an archive, each with its envelope and its effects: a Parquet file for each part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stagepost.flow.clock import to_microseconds
from stagepost.pipeline.archive_folder import Content
from stagepost.ports.dead_letters import Cause, DeadLetter, KeptLetter
from stagepost.ports.effects import LoggedEffect
from stagepost.recovery.letter_filter import types_of
from stagepost.transaction.effects import EffectLog

FILE = "letters.parquet"
FIELDS = tuple(each.name for each in fields(DeadLetter))
MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("flow_id", pa.string()),
        pa.field("stage", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("causes", pa.string()),
        pa.field("stack", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("failures", pa.int32()),
        pa.field("deaths", pa.int32()),
        pa.field("deliveries", pa.int32()),
        pa.field("origin_at", MOMENT),
        pa.field("dead_at", MOMENT),
        pa.field("node", pa.string()),
        pa.field("declared_at", pa.string()),
        pa.field("envelope", pa.binary()),
        # The types of the envelope's messages.
        pa.field("types", pa.list_(pa.string())),
        # JSON: the log's rows of the message, with their intents.
        pa.field("effects", pa.string()),
    ]
)

_causes = msgspec.json.Decoder(tuple[Cause, ...])
_effects = msgspec.json.Decoder(list[LoggedEffect])


@dataclass(frozen=True, slots=True)
class ArchivedLetter:
    """A dead letter of an archive. ``types`` are those of its messages, if its envelope could be read."""

    kept: KeptLetter
    types: Sequence[str]
    effects: Sequence[LoggedEffect]


def write_letters(folder: Path, letters: Sequence[KeptLetter], log: EffectLog | None) -> Content:
    """Write the letters into a new folder, sorted by message id."""
    folder.mkdir()
    rows = [_row(each, _effects_of(each.letter, log)) for each in letters]
    table = pa.Table.from_pylist(rows, SCHEMA).sort_by([("message_id", "ascending"), ("id", "ascending")])
    pq.write_table(table, folder / FILE, compression="zstd")
    return _content(table)


def read_content(folder: Path) -> Content:
    return _content(pq.read_table(folder / FILE, schema=SCHEMA))


def letters_of(files: Sequence[Path]) -> Iterator[ArchivedLetter]:
    """Yield the letters of a part, by their message ids."""
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches():
            yield from map(_letter, batch.to_pylist())


def _row(kept: KeptLetter, effects: Sequence[LoggedEffect]) -> dict[str, Any]:
    letter = kept.letter
    return {
        "id": kept.id,
        **{name: getattr(letter, name) for name in FIELDS},
        "causes": msgspec.json.encode(letter.causes).decode(),
        "types": types_of(letter.envelope),
        "effects": msgspec.json.encode(effects).decode(),
    }


def _letter(row: dict[str, Any]) -> ArchivedLetter:
    values = {name: row[name] for name in FIELDS}
    values["causes"] = _causes.decode(row["causes"])
    values |= {name: to_microseconds(row[name]) for name in ("origin_at", "dead_at")}
    return ArchivedLetter(KeptLetter(row["id"], DeadLetter(**values)), row["types"], _effects.decode(row["effects"]))


def _effects_of(letter: DeadLetter, log: EffectLog | None) -> Sequence[LoggedEffect]:
    if log is None:
        return []
    with log.reading() as effects:
        return effects.of_message(letter.message_id, letter.stage)


def _content(table: pa.Table) -> Content:
    digest = hashlib.sha256()
    for row in table.to_pylist():
        digest.update(repr(row).encode(errors="surrogatepass"))
    return Content(table.num_rows, digest.hexdigest())
