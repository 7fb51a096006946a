"""The reading side. It opens no transaction and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stagepost.flow.inbox import Backlog
from stagepost.flow.journal import Position
from stagepost.flow.reading import Depth
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import Cause, DeadLetter
from stagepost.recovery.letters import KeptLetter, LetterGroup, Selection
from stagepost.store.sqlite.queue import Run
from stagepost.store.sqlite.statements import SQL

PAGE = 200

_causes = msgspec.json.Decoder(tuple[Cause, ...])


class SqliteReader:
    """Implements ``transaction.seams.Reader``."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def depths(self) -> list[Depth]:
        return [Depth(*row) for row in self._run(SQL["list_depths"]).fetchall()]

    def history(self, flow_id: str) -> list[Waypoint]:
        return [Waypoint(*row) for row in self._run(SQL["list_history"], (flow_id,)).fetchall()]

    def flow_of(self, message_id: str) -> str | None:
        found = self._run(SQL["find_flow"], (message_id,)).fetchone()
        return None if found is None else str(found[0])

    def has_committed(self, stage: str, message_id: str) -> bool:
        (found,) = self._run(SQL["has_committed"], {"stage": stage, "message_id": message_id}).fetchone()
        return bool(found)

    def last_waypoint(self) -> int:
        return int(self._run(SQL["last_waypoint"]).fetchone()[0])

    def position(self) -> Position:
        (epoch,) = self._run(SQL["find_epoch"]).fetchone()
        return Position(self.last_waypoint() + 1, epoch)

    def unseen(self, position: int) -> Backlog:
        return Backlog(*self._run(SQL["count_unseen"], (position,)).fetchone())

    def committed_since(self, position: int) -> dict[str, int]:
        return dict(self._run(SQL["count_committed_since"], (position,)).fetchall())

    def has_ended_since(self, position: int) -> bool:
        return bool(self._run(SQL["has_ended_since"], (position,)).fetchone()[0])

    def letters(self, selection: Selection) -> Iterator[KeptLetter]:
        statement = SQL[f"list_letters_by_{selection.by}"]
        after = 0
        while True:
            wanted = {"value": selection.value, "after": after, "limit": PAGE}
            page = [kept_letter(row) for row in self._run(statement, wanted).fetchall()]
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].id

    def letter_ids(self, flow_ids: Sequence[str]) -> list[int]:
        return [letter for (letter,) in self._run(SQL["list_letter_ids"], {"flows": json.dumps(flow_ids)}).fetchall()]

    def letter_groups(self) -> list[LetterGroup]:
        return [LetterGroup(*row) for row in self._run(SQL["list_letter_groups"]).fetchall()]


def kept_letter(row: tuple[Any, ...]) -> KeptLetter:
    return KeptLetter(
        row[0],
        DeadLetter(
            message_id=row[1],
            flow_id=row[2],
            stage=row[3],
            reason=row[4],
            causes=_causes.decode(row[5]),
            stack=row[6],
            fingerprint=row[7],
            failures=row[8],
            deaths=row[9],
            deliveries=row[10],
            origin_at=row[11],
            dead_at=row[12],
            node=row[13],
            declared_at=row[14],
            envelope=row[15],
        ),
    )
