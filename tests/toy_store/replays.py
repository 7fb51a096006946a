"""Replays in memory, and what is left of their frozen sets."""

from __future__ import annotations

from dataclasses import replace

from stagepost.ports.dead_letters import KeptLetter, LetterGroup
from stagepost.ports.replays import Chunk, Replay, Selections, describe
from tests.toy_store.letters import grouped, is_selected
from tests.toy_store.tables import Tables


class ToyReplays:
    """Implements ``ports.replays.Replays``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def freeze(self, wanted: Selections, *, who: str, at: int, rate: float | None) -> Replay:
        letters = [
            key
            for key, letter in self._tables.letters.items()
            if any(is_selected(each, key, letter) for each in wanted)
        ]
        asked = Replay(0, who, at, describe(wanted), rate, len(letters))
        replay = replace(asked, id=self._tables.replays.insert(asked))
        self._tables.replays.put(replay.id, replay)
        for letter in letters:
            self._tables.replay_letters.put((replay.id, letter), True)
        return replay

    def take(self, replay_id: int, after: int, limit: int) -> Chunk:
        ids = [letter for letter in self._left(replay_id) if letter > after][:limit]
        for each in ids:
            self._tables.replay_letters.remove((replay_id, each))
        there = [each for each in ids if self._tables.letters.get(each) is not None]
        return Chunk(ids, [KeptLetter(each, self._tables.letters.remove(each)) for each in there])

    def advance(self, replay_id: int, replayed: int, gone: int) -> None:
        found = self._tables.replays.get(replay_id)
        assert found is not None
        self._tables.replays.put(replay_id, replace(found, replayed=found.replayed + replayed, gone=found.gone + gone))

    def find(self, replay_id: int) -> Replay | None:
        return self._tables.replays.get(replay_id)

    def listed(self) -> list[Replay]:
        return list(self._tables.replays.values())

    def groups(self, replay_id: int) -> list[LetterGroup]:
        left = self._left(replay_id)
        return grouped((key, letter) for key, letter in self._tables.letters.items() if key in left)

    def _left(self, replay_id: int) -> list[int]:
        return [letter for (replay, letter), _ in self._tables.replay_letters.items() if replay == replay_id]
