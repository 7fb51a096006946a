"""The log of effects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from stagepost.flow.effects import EffectId
from stagepost.ports.effects import EffectEnding, EffectFigures, Intent, LoggedEffect, MessageToken
from stagepost.store.sql.database import SqlPart, only, text_of


class SqlEffects(SqlPart):
    """Implements ``ports.effects.Effects``."""

    def raise_token(self, message_id: str, stage: str, token: int) -> bool:
        return self._run("raise_effect_token", (message_id, stage, token)).fetchone() is not None

    def find(self, wanted: EffectId) -> LoggedEffect | None:
        found = self._with_intents(self._run("find_effect", wanted).fetchall())
        return found[0] if found else None

    def of_message(self, message_id: str, stage: str) -> list[LoggedEffect]:
        return self._with_intents(self._run("list_effects", (message_id, stage)).fetchall())

    def row_bytes(self) -> int:
        return int(only(self._run("sample_effect_bytes"))[0] or 0)

    def flows(self, after: int, limit: int) -> list[tuple[int, str]]:
        return self._run("list_effect_flows", {"after": after, "limit": limit}).fetchall()

    def remove_flows(self, flow_ids: Sequence[str], until: int) -> int:
        wanted = {"flow_ids": self._database.array(flow_ids), "until": until}
        self._database.later("remove_effect_intents", wanted)
        self._database.later("remove_effect_tokens", wanted)
        return self._run("remove_effects", wanted).rowcount

    def tokens(self, after: int, limit: int) -> list[MessageToken]:
        rows = self._run("list_effect_tokens", {"after": after, "limit": limit}).fetchall()
        return [MessageToken(row, text_of(message_id), text_of(stage), token) for row, message_id, stage, token in rows]

    def remove_tokens(self, tokens: Sequence[MessageToken]) -> int:
        return sum(self._run("remove_effect_token", each[1:]).rowcount for each in tokens)

    def remove_message(self, message_id: str, stage: str) -> None:
        self._run("remove_message_intents", (message_id, stage))
        self._run("remove_message_effects", (message_id, stage))

    def of_flow(self, flow_id: str) -> list[LoggedEffect]:
        return self._with_intents(self._run("list_flow_effects", (flow_id,)).fetchall())

    def add(self, wanted: EffectId, flow_id: str, generation: int, digest: str, request: bytes) -> int:
        return int(only(self._run("add_effect", (*wanted, flow_id, generation, digest, request)))[0])

    def intend(self, effect: int, token: int, owner: str, node: str, at: int, *, is_repeat: bool) -> int:
        return int(only(self._run("add_intent", (effect, token, owner, node, at, is_repeat)))[0])

    def withdraw(self, effect: int, until: int) -> None:
        self._run("withdraw_intents", (effect, until))

    def withdraw_one(self, intent: int) -> None:
        self._run("withdraw_intent", (intent,))

    def end_intents(self, message_id: str, stage: str, token: int) -> None:
        self._run("end_intents", {"message_id": message_id, "stage": stage, "token": token})

    def keep(self, effect: int, result: bytes) -> None:
        self._run("keep_result", {"id": effect, "result": result})

    def end(self, effect: int, ending: EffectEnding | None) -> None:
        self._run("end_effect", {"id": effect, "ending": ending})

    def figures(self) -> EffectFigures:
        unknown, since = only(self._run("count_unknown_effects"))
        (repeated,) = only(self._run("count_repeats"))
        (doubted,) = only(self._run("count_doubted"))
        return EffectFigures(unknown, since, repeated, doubted)

    def _with_intents(self, rows: Sequence[Sequence[Any]]) -> list[LoggedEffect]:
        if not rows:
            return []
        intents: defaultdict[int, list[Intent]] = defaultdict(list)
        wanted = (self._database.array([row[0] for row in rows]),)
        for effect, *columns in self._run("list_intents", wanted).fetchall():
            row, token, owner, node, at, *flags = columns
            intents[effect].append(Intent(row, token, text_of(owner), text_of(node), at, *map(bool, flags)))
        return [_effect(row, intents[row[0]]) for row in rows]


def _effect(columns: Sequence[Any], intents: Sequence[Intent]) -> LoggedEffect:
    row, message_id, stage, index, handler, name, ordinal, flow_id, generation, digest, request, result, ending = (
        columns
    )
    wanted = EffectId(text_of(message_id), text_of(stage), index, text_of(handler), text_of(name), ordinal)
    return LoggedEffect(
        row, wanted, text_of(flow_id), generation, text_of(digest), request, result, _ending(ending), intents
    )


def _ending(text: str | bytes | None) -> EffectEnding | None:
    return None if text is None else cast("EffectEnding", text_of(text))
