"""Replays, and what is left of their frozen sets."""

from __future__ import annotations

from stagepost.recovery.letters import LetterGroup, Selection
from stagepost.recovery.replays import Chunk, Period, Replay, Wanted, told
from stagepost.store.postgres.reader import kept_letter
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.texts import writable
from stagepost.store.postgres.wire import Wire, only


class PostgresReplays:
    """Implements ``transaction.seams.Replays``. Writes are part of whatever transaction is open."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def freeze(self, wanted: Wanted, *, who: str, at: int, rate: float | None) -> Replay:
        row = (writable(who), at, writable(told(wanted)), rate)
        (replay_id,) = only(self._wire.run(SQL["begin_replay"], row))
        letters = sum(self._freeze(replay_id, each) for each in wanted)
        self._wire.later(SQL["size_replay"], {"replay": replay_id, "letters": letters})
        return Replay(replay_id, *row, letters)

    def _freeze(self, replay_id: int, wanted: Selection | Period) -> int:
        if isinstance(wanted, Period):
            period = {"replay": replay_id, "since": wanted.since, "until": wanted.until}
            return self._wire.run(SQL["freeze_letters_by_time"], period).rowcount
        return self._wire.run(
            SQL[f"freeze_letters_by_{wanted.by}"], {"replay": replay_id, "value": wanted.value}
        ).rowcount

    def take(self, replay_id: int, after: int, limit: int) -> Chunk:
        wanted = {"replay": replay_id, "after": after, "limit": limit}
        # RETURNING promises no order.
        ids = sorted(letter for (letter,) in self._wire.run(SQL["take_replay_letters"], wanted).fetchall())
        rows = self._wire.run(SQL["exhume_letters"], {"ids": ids}).fetchall()
        return Chunk(ids, sorted(map(kept_letter, rows), key=lambda kept: kept.id))

    def advance(self, replay_id: int, replayed: int, gone: int) -> None:
        self._wire.later(SQL["advance_replay"], {"replay": replay_id, "replayed": replayed, "gone": gone})

    def find(self, replay_id: int) -> Replay | None:
        found = self._wire.run(SQL["find_replay"], {"replay": replay_id}).fetchone()
        return None if found is None else Replay(*found)

    def listed(self) -> list[Replay]:
        return [Replay(*row) for row in self._wire.run(SQL["list_replays"]).fetchall()]

    def groups(self, replay_id: int) -> list[LetterGroup]:
        return [
            LetterGroup(*row) for row in self._wire.run(SQL["list_replay_groups"], {"replay": replay_id}).fetchall()
        ]
