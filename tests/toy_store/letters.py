"""Dead letters in memory: chosen and grouped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stagepost.ports.dead_letters import DeadLetter, KeptLetter, LetterGroup, Selection
from stagepost.ports.replays import Period
from tests.toy_store.tables import Tables


class ToyDeadLetters:
    """Implements ``ports.dead_letters.DeadLetters``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def bury(self, letter: DeadLetter) -> None:
        self._tables.letters.insert(letter)

    def remove(self, letter_id: int) -> bool:
        if self._tables.letters.get(letter_id) is None:
            return False
        self._tables.letters.remove(letter_id)
        return True

    def select(self, selection: Selection) -> Iterator[KeptLetter]:
        for key, letter in self._tables.letters.items():
            if is_selected(selection, key, letter):
                yield KeptLetter(key, letter)

    def ids_of(self, flow_ids: Sequence[str]) -> list[int]:
        return [key for key, letter in self._tables.letters.items() if letter.flow_id in flow_ids]

    def groups(self) -> list[LetterGroup]:
        return grouped(self._tables.letters.items())


def is_selected(wanted: Selection | Period, key: int, letter: DeadLetter) -> bool:
    if isinstance(wanted, Period):
        return wanted.since <= letter.dead_at < wanted.until
    matches = {
        "all": None,
        "id": key,
        "message": letter.message_id,
        "flow": letter.flow_id,
        "group": letter.fingerprint,
    }
    return matches[wanted.by] == wanted.value


def grouped(letters: Iterable[tuple[int, DeadLetter]]) -> list[LetterGroup]:
    groups: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for key, letter in letters:
        groups.setdefault((letter.fingerprint, letter.stage, letter.reason), []).append((letter.dead_at, key))
    found = [
        LetterGroup(*group, len(dead), min(dead)[0], max(dead)[0], max(key for _, key in dead))
        for group, dead in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.count, -group.last_at))
