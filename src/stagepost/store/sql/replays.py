"""Replays, and what is left of their frozen sets."""

from __future__ import annotations

from stagepost.ports.dead_letters import LetterGroup, Selection
from stagepost.ports.replays import Chunk, Period, Replay, Selections, describe
from stagepost.store.sql.database import SqlPart
from stagepost.store.sql.letters import kept_letter
from stagepost.store.sql.texts import writable


class SqlReplays(SqlPart):
    """Implements ``ports.replays.Replays``. Writes are part of the open transaction."""

    def freeze(self, wanted: Selections, *, who: str, at: int, rate: float | None) -> Replay:
        row = (writable(who), at, writable(describe(wanted)), rate)
        ((replay_id,),) = self._run("begin_replay", row).fetchall()
        letters = sum(self._freeze(replay_id, each) for each in wanted)
        self._database.later("size_replay", {"replay": replay_id, "letters": letters})
        return Replay(replay_id, *row, letters)

    def _freeze(self, replay_id: int, wanted: Selection | Period) -> int:
        if isinstance(wanted, Period):
            return self._run("freeze_letters_by_time", (replay_id, wanted.since, wanted.until)).rowcount
        chosen = {"replay": replay_id, "value": wanted.value}
        return self._run(f"freeze_letters_by_{wanted.by}", chosen).rowcount

    def take(self, replay_id: int, after: int, limit: int) -> Chunk:
        wanted = {"replay": replay_id, "after": after, "limit": limit}
        # RETURNING promises no order.
        ids = sorted(letter for (letter,) in self._run("take_replay_letters", wanted).fetchall())
        rows = self._run("exhume_letters", (self._database.array(ids),)).fetchall()
        return Chunk(ids, sorted(map(kept_letter, rows), key=lambda kept: kept.id))

    def advance(self, replay_id: int, replayed: int, gone: int) -> None:
        self._database.later("advance_replay", {"replay": replay_id, "replayed": replayed, "gone": gone})

    def find(self, replay_id: int) -> Replay | None:
        found = self._run("find_replay", (replay_id,)).fetchone()
        return None if found is None else Replay(*found)

    def listed(self) -> list[Replay]:
        return [Replay(*row) for row in self._run("list_replays").fetchall()]

    def groups(self, replay_id: int) -> list[LetterGroup]:
        return [LetterGroup(*row) for row in self._run("list_replay_groups", (replay_id,)).fetchall()]
