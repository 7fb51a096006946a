"""Dead letters in memory: chosen and grouped."""

from __future__ import annotations

from collections.abc import Iterable

from stagepost.ports.dead_letters import DeadLetter, LetterGroup, Selection
from stagepost.ports.replays import Period


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
