"""The reading side. It opens no transaction and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stagepost.flow.inbox import Backlog
from stagepost.flow.journal import Position
from stagepost.flow.reading import Depth
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import Cause, DeadLetter
from stagepost.recovery.letters import KeptLetter, LetterGroup, Selection
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Wire, only

PAGE = 200

_causes = msgspec.json.Decoder(tuple[Cause, ...])


class PostgresReader:
    """Implements ``transaction.seams.Reader``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def depths(self) -> list[Depth]:
        return [Depth(*row) for row in self._wire.run(SQL["list_depths"]).fetchall()]

    def history(self, flow_id: str) -> list[Waypoint]:
        return [Waypoint(*row) for row in self._wire.run(SQL["list_history"], (flow_id,)).fetchall()]

    def flow_of(self, message_id: str) -> str | None:
        found = self._wire.run(SQL["find_flow"], (message_id,)).fetchone()
        return None if found is None else str(found[0])

    def has_committed(self, stage: str, message_id: str) -> bool:
        return bool(only(self._wire.run(SQL["has_committed"], {"stage": stage, "message_id": message_id}))[0])

    def last_waypoint(self) -> int:
        return int(only(self._wire.run(SQL["last_waypoint"]))[0])

    def position(self) -> Position:
        """Ids are given out before their commits; but what an open transaction writes carries its number, and all with
        lesser numbers than the oldest open one are over."""
        # In this order: of a server that is promoted in between, the position is refused.
        epoch = str(only(self._wire.run(SQL["find_epoch"]))[1])
        return Position(only(self._wire.run(SQL["journal_position"]))[0], epoch)

    def unseen(self, position: int) -> Backlog:
        return Backlog(*only(self._wire.run(SQL["count_unseen"], (int(position),))))

    def committed_since(self, position: int) -> dict[str, int]:
        return dict(self._wire.run(SQL["count_committed_since"], {"position": int(position)}).fetchall())

    def has_ended_since(self, position: int) -> bool:
        return bool(only(self._wire.run(SQL["has_ended_since"], (int(position),)))[0])

    def letters(self, selection: Selection) -> Iterator[KeptLetter]:
        statement = SQL[f"list_letters_by_{selection.by}"]
        after = 0
        while True:
            wanted = {"value": selection.value, "after": after, "limit": PAGE}
            page = [kept_letter(row) for row in self._wire.run(statement, wanted).fetchall()]
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].id

    def letter_ids(self, flow_ids: Sequence[str]) -> list[int]:
        return [letter for (letter,) in self._wire.run(SQL["list_letter_ids"], {"flows": list(flow_ids)}).fetchall()]

    def letter_groups(self) -> list[LetterGroup]:
        return [LetterGroup(*row) for row in self._wire.run(SQL["list_letter_groups"]).fetchall()]


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
