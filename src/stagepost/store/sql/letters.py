"""Dead letters: set aside, looked through, and taken out again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stagepost.ports.dead_letters import Cause, DeadLetter, KeptLetter, LetterGroup, Selection
from stagepost.store.sql.database import SqlDatabase, SqlPart
from stagepost.store.sql.texts import writable

PAGE = 200
# The columns are in the same order.
FIELDS = tuple(field.name for field in dataclasses.fields(DeadLetter))

_causes = msgspec.json.Decoder(tuple[Cause, ...])


class SqlDeadLetters(SqlPart):
    """Implements ``ports.dead_letters.DeadLetters``."""

    def bury(self, letter: DeadLetter) -> None:
        values = {name: getattr(letter, name) for name in FIELDS}
        values["causes"] = msgspec.json.encode(letter.causes).decode()
        values["stack"] = writable(letter.stack)
        self._database.later("bury_letter", values)

    def remove(self, letter_id: int) -> bool:
        return bool(self._run("exhume_letters", (self._database.array([letter_id]),)).fetchall())

    def select(self, selection: Selection) -> Iterator[KeptLetter]:
        after = 0
        while True:
            wanted = {"value": selection.value, "after": after, "limit": PAGE}
            page = [kept_letter(row) for row in self._run(f"list_letters_by_{selection.by}", wanted).fetchall()]
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].id

    def ids_of(self, flow_ids: Sequence[str]) -> list[int]:
        wanted = (self._database.array(flow_ids),)
        return [letter for (letter,) in self._run("list_letter_ids", wanted).fetchall()]

    def groups(self) -> list[LetterGroup]:
        return [LetterGroup(*row) for row in self._run("list_letter_groups").fetchall()]


def note_removed(database: SqlDatabase, deaths: Sequence[int]) -> None:
    """Keep the latest of these moments. Letters died then that leave the store because of their age."""
    if deaths:
        database.later("note_removed_letters", {"dead_at": str(max(deaths))})


def kept_letter(row: tuple[Any, ...]) -> KeptLetter:
    letter_id, *columns = row
    values = dict(zip(FIELDS, columns, strict=True))
    values["causes"] = _causes.decode(values["causes"])
    return KeptLetter(letter_id, DeadLetter(**values))
