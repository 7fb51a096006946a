"""The rules of retention: how many hours of housekeeping each kind of row is kept."""

from __future__ import annotations

from collections.abc import Mapping

from stagepost.ports.session import Session
from stagepost.transaction.arrivals import SCOPE_PREFIX

DAY = 24
GATEWAY_PREFIX = "gateway:"
# Before the id of an archive: the scope of the letters that were replayed from it.
REPLAY_PREFIX = "replay:"
# A sender that lost its broker's answer may publish a copy for so long. An app may only lengthen it.
BROKER_HOURS = 7 * DAY

# The default retention of each kind of row, in hours of housekeeping. None: no end.
#
# ``initiations``  ids of started flows, those of bulk runs included
# ``gateway``      ids of requests that the gateway accepted
# ``broker``       ids of a broker's messages, until the address is caught up after that
# ``journal``      lines of flows that have ended
# ``inbox``        ids of messages that a stage handled whose queue is in another database
# ``business_keys``  business keys of stages, with the stored replies
# ``replays``      replays without letters that are left
# ``runs``         bulk runs, with their counts and quarantined rows
# ``findings``     findings of audits
KINDS: Mapping[str, int | None] = {
    "initiations": 400 * DAY,
    "gateway": 7 * DAY,
    "broker": BROKER_HOURS,
    "journal": 90 * DAY,
    "inbox": 7 * DAY,
    "business_keys": 400 * DAY,
    "dead_letters": None,
    "replays": 400 * DAY,
    "runs": 400 * DAY,
    "findings": 400 * DAY,
}


def address_of(scope: str) -> str:
    """Return the address of a broker's scope; empty for another scope."""
    return scope.removeprefix(SCOPE_PREFIX) if scope.startswith(SCOPE_PREFIX) else ""


def scope_of_kind(kind: str) -> str:
    """Return the scope under which the store has the declared retention of a kind of row. It is no address."""
    return f"@{kind}"


class Rules:
    """The retention of each kind of row and of each scope. ``declared`` takes precedence over ``KINDS``."""

    def __init__(self, declared: Mapping[str, int] | None = None) -> None:
        self._declared = declared or {}

    def of_kind(self, kind: str) -> int | None:
        """Return the hours for a kind of row; None for rows that stay."""
        return self._declared.get(scope_of_kind(kind), KINDS[kind])

    def of_scope(self, scope: str) -> int | None:
        """Return the hours for the ids of a scope; None for ids that stay."""
        if scope.startswith(REPLAY_PREFIX):
            # They live as long as their manifests, which are never removed.
            return None
        if scope.startswith(SCOPE_PREFIX):
            hours, least = self._declared.get(address_of(scope), 0), self.of_kind("broker")
            return None if least is None else max(hours, least, BROKER_HOURS)
        if scope.startswith(GATEWAY_PREFIX):
            return self.of_kind("gateway")
        return self._declared.get(scope, self.of_kind("initiations"))

    def of_stage(self, kind: str, stage: str) -> int | None:
        """Return the hours for a stage's rows of the kind ``inbox`` or ``business_keys``; None for rows that stay."""
        return self._declared.get(stage, self.of_kind(kind))


def read_rules(queue: Session) -> Rules:
    """Read the rules of a store. Where several apps declare a retention, the longest one counts."""
    hours: dict[str, int] = {}
    for each in queue.retention.declared():
        hours[each.scope] = max(each.hours, hours.get(each.scope, 0))
    return Rules(hours)
